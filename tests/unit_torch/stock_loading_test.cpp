// Stock loading: torch's wrapper around limbo_malloc gives way, a program's own plug-in stays.
#include "hooks/stock_loading.h"

#include <c10/util/Logging.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/capi.h"
#include "hooks/install.h"
#include "hooks/preconditions.h"
#include "tests/support/child_process.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
namespace pluggable = torch::cuda::CUDAPluggableAllocator;

class StockLoading : public TorchTest {};

// What a C++ program makes of the two functions.
std::shared_ptr<pluggable::CUDAPluggableAllocator> wrapper_of_cpp() {
  return std::make_shared<pluggable::CUDAPluggableAllocator>(&limbo_malloc, &limbo_free);
}

// What torch makes of the addresses that ctypes gives for the functions' names.
using MallocFunction = void*(std::size_t, int, cudaStream_t);
using FreeFunction = void(void*, std::size_t, int, cudaStream_t);
std::shared_ptr<pluggable::CUDAPluggableAllocator> wrapper_around(MallocFunction* allocate) {
  return std::make_shared<pluggable::CUDAPluggableAllocator>(
      allocate, reinterpret_cast<FreeFunction*>(&limbo_free));
}
std::shared_ptr<pluggable::CUDAPluggableAllocator> stock_wrapper() {
  return wrapper_around(reinterpret_cast<MallocFunction*>(&limbo_malloc));
}

// A program's own plug-in, for which Limbo allocates what is large.
constexpr std::size_t kLimboFromBytes = 4096;
std::shared_ptr<pluggable::CUDAPluggableAllocator> plug_in_over_limbo() {
  return std::make_shared<pluggable::CUDAPluggableAllocator>(
      [](std::size_t size_bytes, int device, cudaStream_t stream) {
        return size_bytes < kLimboFromBytes
                   ? std::malloc(size_bytes)
                   : limbo_malloc(static_cast<intptr_t>(size_bytes), device, stream);
      },
      [](void* data, std::size_t size_bytes, int device, cudaStream_t stream) {
        if (size_bytes < kLimboFromBytes) {
          std::free(data);
        } else {
          limbo_free(data, static_cast<intptr_t>(size_bytes), device, stream);
        }
      });
}

void expect_to_give_way(const std::shared_ptr<pluggable::CUDAPluggableAllocator>& wrapper) {
  pluggable::changeCurrentAllocator(wrapper);
  EXPECT_EQ(torch_cuda::name(), "pluggable");
  wrapper->init(1);

  void* first = wrapper->malloc(1000, 0, nullptr);
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(installed());
  EXPECT_TRUE(adapter().initialized());
  EXPECT_EQ(torch_cuda::name(), "limbo");
  // torch keeps the wrapper: what it has handed out is freed through it.
  EXPECT_EQ(pluggable::getCurrentAllocator(), wrapper);

  void* second = torch_cuda::raw_alloc(1000);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 2);
  wrapper->raw_delete(first);
  torch_cuda::raw_delete(second);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 0);

  // The wrapper still works, by whoever holds it, and its memory may be freed by the new one.
  void* third = wrapper->malloc(1000, 0, nullptr);
  torch_cuda::raw_delete(third);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 0);
}

TEST_F(StockLoading, TheStockWrapperGivesWayAtItsFirstAllocation) {
  expect_to_give_way(stock_wrapper());
}

TEST_F(StockLoading, TheWrapperOfAProgramInCppGivesWayAtItsFirstAllocation) {
  expect_to_give_way(wrapper_of_cpp());
}

// So that a process may receive before it allocates anything.
TEST_F(StockLoading, TheStockWrapperGivesWayWhenTorchInitialisesCuda) {
  const auto wrapper = stock_wrapper();
  pluggable::changeCurrentAllocator(wrapper);
  c10::LogAPIUsage("aten.something.else");
  EXPECT_EQ(torch_cuda::get(), wrapper.get());
  c10::LogAPIUsage("aten.init.cuda");  // as at::CUDAHooks does, right before the next line
  EXPECT_TRUE(installed());
  torch_cuda::init(1);
  EXPECT_TRUE(adapter().initialized());
  EXPECT_FALSE(wrapper->initialized());
  void* data = torch_cuda::raw_alloc(1000);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 1);
  torch_cuda::raw_delete(data);
}

// As Python makes it. It cannot say whether its memory is used, and another one that cannot is
// refused.
TEST_F(StockLoading, TheInitialisedStockWrapperGivesWayToInstalling) {
  const auto wrapper = stock_wrapper();
  wrapper->init(1);
  pluggable::changeCurrentAllocator(wrapper);
  install();
  EXPECT_TRUE(installed());
  EXPECT_TRUE(adapter().initialized());
  // torch keeps the wrapper: what it may hand out is freed through it.
  EXPECT_EQ(pluggable::getCurrentAllocator(), wrapper);
  void* data = wrapper->malloc(1000, 0, nullptr);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 1);
  c10::DataPtr(data, data, wrapper->raw_deleter(), c10::Device(c10::kCUDA, 0)).clear();
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 0);
}

TEST_F(StockLoading, WrappersOfOtherFunctionsStay) {
  const auto other =
      wrapper_around(+[](std::size_t, int, cudaStream_t) -> void* { return nullptr; });
  for (const auto& wrapper : {other, plug_in_over_limbo()}) {
    pluggable::changeCurrentAllocator(wrapper);
    c10::LogAPIUsage("aten.init.cuda");
    EXPECT_EQ(torch_cuda::get(), wrapper.get());
  }
  EXPECT_FALSE(installed());
}

// It may count, or have memory of its own, which is freed through it.
TEST_F(StockLoading, APlugInThatAllocatesByLimboStays) {
  const auto plug_in = plug_in_over_limbo();
  pluggable::changeCurrentAllocator(plug_in);
  plug_in->init(1);
  void* large = plug_in->malloc(kLimboFromBytes, 0, nullptr);
  EXPECT_EQ(torch_cuda::get(), plug_in.get());
  void* small = plug_in->malloc(kLimboFromBytes - 1, 0, nullptr);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 1);
  EXPECT_TRUE(holds_in_fork_child([&] {
    torch_cuda::raw_delete(large);  // the parent's: nothing to do, without a word
    expect_starts_with(torch_error_of([&] { (void)plug_in->malloc(kLimboFromBytes, 0, nullptr); }),
                       "limbo[forked_child]: ");
    return !HasFailure();
  }));
  torch_cuda::raw_delete(small);
  torch_cuda::raw_delete(large);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 0);
  EXPECT_FALSE(installed());
  EXPECT_EQ(limbo_torch_install(), static_cast<int>(ErrorCode::kAlreadyInUse));
  EXPECT_EQ(torch_cuda::get(), plug_in.get());
}

LIMBO_CHILD_ROLE(end_with_memory_of_a_plug_in_over_limbo) {
  const auto plug_in = plug_in_over_limbo();
  pluggable::changeCurrentAllocator(plug_in);
  torch_cuda::raw_delete(plug_in->malloc(kLimboFromBytes, 0, nullptr));
  child.send(plug_in->malloc(kLimboFromBytes, 0, nullptr) != nullptr ? "allocated" : "nothing");
  return 0;
}

TEST_F(StockLoading, AProcessWithSuchAPlugInEndsQuietly) {
  ChildProcess child("end_with_memory_of_a_plug_in_over_limbo");
  child.expect("allocated");
  child.finish();
  EXPECT_EQ(child.output(), "");
}

TEST_F(StockLoading, AsBackingOfAPoolTheFunctionsLeaveTorchAlone) {
  const auto* before = torch_cuda::get();
  void* data = limbo_malloc(1 << 20, 0, nullptr);
  EXPECT_NE(data, nullptr);
  EXPECT_EQ(torch_cuda::get(), before);
  limbo_free(data, 1 << 20, 0, nullptr);
  EXPECT_EQ(limbo_malloc(0, 0, nullptr), nullptr);
  limbo_free(nullptr, 0, 0, nullptr);
  expect_starts_with(torch_error_of([] { (void)limbo_malloc(-1, 0, nullptr); }),
                     "limbo[bad_argument]: ");
}

TEST_F(StockLoading, AnotherAllocatorThatIsInitialisedIsNamed) {
  const auto wrapper = plug_in_over_limbo();
  pluggable::changeCurrentAllocator(wrapper);
  wrapper->init(1);
  try {
    require_unused(*wrapper);
    FAIL() << "a wrapper that cannot tell was believed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAlreadyInUse);
    EXPECT_NE(std::string(error.what()).find("\"pluggable\""), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace limbo::testing
