// Private pools with an allocator of their own behind them, and what is sent out of them.
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allocator/device/sim_device.h"
#include "allocator/error.h"
#include "hooks/capi.h"
#include "hooks/current_stream.h"
#include "hooks/tensors.h"
#include "tests/support/child_process.h"
#include "tests/support/sandbox.h"
#include "tests/unit_torch/pools_support.h"

namespace limbo::testing {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
namespace pluggable = torch::cuda::CUDAPluggableAllocator;

struct Calls {
  std::vector<int> taken_on;  // devices
  std::vector<int> given_on;
  bool full = false;
};

class OwnAllocator final : public pluggable::CUDAPluggableAllocator {
 public:
  explicit OwnAllocator(Calls& calls)
      : CUDAPluggableAllocator([](std::size_t, int, cudaStream_t) -> void* { return nullptr; },
                               [](void*, std::size_t, int, cudaStream_t) {}),
        calls_(calls) {}
  void* raw_alloc(std::size_t size_bytes) override {
    if (calls_.full) C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory, says the allocator.");
    calls_.taken_on.push_back(current_device());
    return allocator_in_use().device().try_allocate(current_device(), size_bytes);
  }
  void raw_delete(void* data) override {
    calls_.given_on.push_back(current_device());
    allocator_in_use().device().free(current_device(), data);
  }

 private:
  Calls& calls_;
};

TEST_F(PoolsOfTorch, GetTheirMemoryFromTheAllocatorBehindThem) {
  Calls calls;
  auto own = std::make_shared<OwnAllocator>(calls);
  const std::weak_ptr<OwnAllocator> watched = own;
  adapter().createOrIncrefPool(0, kPool, std::move(own));
  EXPECT_TRUE(calls.taken_on.empty());
  void* first = allocate_in_pool(kMiB);
  void* second = allocate_in_pool(kMiB);
  EXPECT_EQ(calls.taken_on, std::vector<int>{0});  // one segment of 2 MiB
  void* third = allocate_in_pool(kMiB);
  EXPECT_EQ(calls.taken_on.size(), 2U);
  EXPECT_EQ(segments_of(kPool), 2U);
  adapter().raw_delete(first);
  adapter().raw_delete(second);
  end_pool();
  EXPECT_EQ(calls.given_on, std::vector<int>{0});
  EXPECT_FALSE(watched.expired());  // a block of it lives
  adapter().raw_delete(third);
  EXPECT_FALSE(watched.expired());
  adapter().emptyCache({0, 0});
  EXPECT_EQ(calls.given_on.size(), 2U);
  EXPECT_TRUE(watched.expired());
}

TEST_F(PoolsOfTorch, AreFullWhereTheAllocatorBehindThemIs) {
  Calls calls;
  adapter().createOrIncrefPool(0, kPool, std::make_shared<OwnAllocator>(calls));
  calls.full = true;
  EXPECT_THROW((void)allocate_in_pool(kMiB), c10::OutOfMemoryError);
  calls.full = false;
  adapter().raw_delete(allocate_in_pool(kMiB));
  end_pool();
}

// As torch.cuda.MemPool(torch.cuda.memory.CUDAPluggableAllocator(...).allocator()) has it, with the
// very object of stock loading; and with the one that enable() and LimboAllocator give.
TEST_F(PoolsOfTorch, AreLikeOthersWhereTheAllocatorBehindThemIsLimbo) {
  using Malloc = void*(std::size_t, int, cudaStream_t);
  using Free = void(void*, std::size_t, int, cudaStream_t);
  const auto wrapper = std::make_shared<pluggable::CUDAPluggableAllocator>(
      reinterpret_cast<Malloc*>(reinterpret_cast<void*>(&limbo_malloc)),
      reinterpret_cast<Free*>(reinterpret_cast<void*>(&limbo_free)));
  const std::shared_ptr<torch_cuda::CUDAAllocator> named[] = {wrapper, shared_adapter()};
  for (const auto& allocator : named) {
    adapter().createOrIncrefPool(0, kPool, allocator);
    void* data = allocate_in_pool(3 * kMiB);
    EXPECT_EQ(segments_of(kPool), 1U);
    EXPECT_TRUE(adapter().checkPoolLiveAllocations(0, kPool, {data}));
    adapter().raw_delete(data);
    end_pool();
    EXPECT_EQ(segments_of(kPool), 0U);
  }
}

// An allocator by two functions. (torch's own wrapper asks CUDA for the device.)
class ByFunctions final : public pluggable::CUDAPluggableAllocator {
 public:
  using Take = std::function<void*(std::size_t)>;
  using Give = std::function<void(void*)>;
  ByFunctions(Take take, Give give)
      : CUDAPluggableAllocator([](std::size_t, int, cudaStream_t) -> void* { return nullptr; },
                               [](void*, std::size_t, int, cudaStream_t) {}),
        take_(std::move(take)),
        give_(std::move(give)) {}
  void* raw_alloc(std::size_t size_bytes) override { return take_(size_bytes); }
  void raw_delete(void* data) override { give_(data); }

 private:
  const Take take_;
  const Give give_;
};

// Which nobody can tell from the allocator that it is.
TEST_F(PoolsOfTorch, AreRefusedLimbosMemoryByOtherWays) {
  const auto roundabout = std::make_shared<ByFunctions>(
      [](std::size_t size_bytes) {
        return limbo_malloc(static_cast<intptr_t>(size_bytes), 0, nullptr);
      },
      [](void* data) { limbo_free(data, 0, 0, nullptr); });
  adapter().createOrIncrefPool(0, kPool, roundabout);
  for (const std::size_t size_bytes : {std::size_t{1000}, 3 * kMiB, 64 * kMiB}) {
    const std::string text = torch_error_of([&] { (void)allocate_in_pool(size_bytes); });
    expect_starts_with(text, "limbo[bad_argument]: The allocator of the pool (0, 1) on device 0");
  }
  EXPECT_EQ(segments_of(kPool), 0U);
  EXPECT_EQ(adapter().getDeviceStats(0).allocation[kAll].current, 0);
  end_pool();
}

// Memory some bytes behind an allocation's start, as an allocator has it that cuts its own blocks.
TEST_F(PoolsOfTorch, AreOpenedByOthersWhereTheirMemoryReallyLies) {
  constexpr std::ptrdiff_t kShift = 4096;
  Device& device = allocator_in_use().device();
  const auto own = std::make_shared<ByFunctions>(
      [&](std::size_t size_bytes) -> void* {
        void* base = device.try_allocate(0, size_bytes + kMiB);
        return base == nullptr ? nullptr : static_cast<char*>(base) + kShift;
      },
      [&](void* data) { device.free(0, static_cast<char*>(data) - kShift); });
  adapter().createOrIncrefPool(0, kPool, own);
  void* data = allocate_in_pool(3 * kMiB);
  const std::vector<float> values = {0, 1, 2};
  device.copy_from_host({0, nullptr}, data, values.data(), values.size() * sizeof(float));
  device.synchronize_stream({0, nullptr});

  const DriverAllocation whole = device.driver_allocation(0, data);
  std::size_t size_bytes = 0;
  EXPECT_EQ(adapter().getBaseAllocation(data, &size_bytes), whole.base);
  EXPECT_EQ(size_bytes, whole.size_bytes);
  const auto handle = adapter().shareIpcHandle(data);
  EXPECT_EQ(handle.offset, static_cast<char*>(data) - static_cast<char*>(whole.base));
  ChildProcess child("open_stock_handle");
  child.send_bytes(std::as_bytes(std::span(handle.handle)));
  child.send(std::to_string(handle.offset));
  child.expect("done");
  child.finish();
  adapter().raw_delete(data);
  end_pool();
}

// As memory of ncclMemAlloc has none.
TEST_F(PoolsOfTorch, SayWhatToDoWhereTheDriverHasNoHandle) {
  Calls calls;
  adapter().createOrIncrefPool(0, kPool, std::make_shared<OwnAllocator>(calls));
  void* data = allocate_in_pool(kMiB);
  SimDevice& sim = as_sim(allocator_in_use().device());
  sim.faults().add("export_memory:1=fail");
  const std::string text = torch_error_of([&] { (void)adapter().shareIpcHandle(data); });
  sim.faults().clear();
  expect_starts_with(text, "limbo[not_lendable]: The memory at ");
  EXPECT_NE(text.find("clone()"), std::string::npos) << text;
  EXPECT_EQ(adapter().shareIpcHandle(data).handle.size(), 66U);
  adapter().raw_delete(data);
  end_pool();
}

// torch.multiprocessing sends by Limbo what is lendable, and the rest torch's own way.
TEST_F(PoolsOfTorch, HaveNothingToLend) {
  adapter().createOrIncrefPool(0, kPool, nullptr);
  adapter().beginAllocateToPool(0, kPool, everything);
  at::Tensor inside = sim_arange(1000);
  adapter().endAllocateToPool(0, kPool);
  adapter().releasePool(0, kPool);
  at::Tensor outside = sim_arange(1000);
  EXPECT_FALSE(is_lendable(inside));
  EXPECT_TRUE(is_lendable(outside));
  const auto refusal = [&] {
    try {
      (void)share_tensor(inside);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNotLendable);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  }();
  EXPECT_NE(refusal.find("private pool (0, 1)"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("clone()"), std::string::npos) << refusal;
  EXPECT_EQ(adapter().shareIpcHandle(inside.mutable_data_ptr()).handle.size(), 66U);
  inside.reset();
  outside.reset();
  end_pool();
}

// In a process of its own, which has a machine of two devices.
LIMBO_CHILD_ROLE(pool_on_a_second_device) {
  constexpr c10::MempoolId_t kPool{0, 1};
  const auto everything = [](cudaStream_t /*stream*/) { return true; };
  install();
  Calls calls;
  adapter().createOrIncrefPool(1, kPool, std::make_shared<OwnAllocator>(calls));
  adapter().beginAllocateToPool(1, kPool, everything);
  set_simulated_device(1);
  void* data = adapter().raw_alloc(1 << 20);
  set_simulated_device(0);
  adapter().endAllocateToPool(1, kPool);
  adapter().releasePool(1, kPool);
  adapter().raw_delete(data);
  adapter().releasePool(1, kPool);
  adapter().emptyCache(kPool);
  const auto all_on = [](const std::vector<int>& devices) {
    return devices.size() == 1 ? std::to_string(devices[0]) : std::string("not one");
  };
  child.send(all_on(calls.taken_on));
  child.send(all_on(calls.given_on));
  child.send(std::to_string(current_device()));
  return 0;
}

TEST_F(PoolsOfTorch, AskItOnTheirDevice) {
  const Sandbox sandbox;  // where the child makes its machine
  ChildOptions options;
  options.environment.emplace_back("LIMBO_SIM_DEVICES", "2");
  ChildProcess child("pool_on_a_second_device", {}, options);
  child.expect("1");
  child.expect("1");
  child.expect("0");
  child.finish();
}

}  // namespace
}  // namespace limbo::testing
