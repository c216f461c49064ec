#include "hooks/install.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/capi.h"
#include "hooks/preconditions.h"
#include "hooks/version.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
namespace pluggable = torch::cuda::CUDAPluggableAllocator;

class Install : public TorchTest {};

TEST_F(Install, PutsTheAdapterIntoBothOfTorchsPlaces) {
  EXPECT_FALSE(installed());
  install();
  EXPECT_TRUE(installed());
  EXPECT_EQ(torch_cuda::get(), &adapter());
  EXPECT_EQ(torch_cuda::name(), "limbo");
  EXPECT_EQ(c10::getDeviceAllocator(c10::DeviceType::CUDA), &adapter());
  EXPECT_EQ(pluggable::getCurrentAllocator().get(), &adapter());
  install();  // a second time is nothing
  EXPECT_TRUE(installed());
  EXPECT_EQ(limbo_torch_installed(), 1);
}

TEST_F(Install, ASecondTimeIsNothingWhateverTheSettingsSayByThen) {
  install();
  ::setenv("LIMBO_UNMAP_WAIT_MS", "long", 1);
  EXPECT_EQ(limbo_torch_install(), 0) << limbo_last_error();
  const char* name = "collect_wait_ms";
  const std::int64_t value = 1'000;
  EXPECT_EQ(limbo_torch_enable(&name, &value, 1), 0) << limbo_last_error();
  ::unsetenv("LIMBO_UNMAP_WAIT_MS");
}

TEST_F(Install, ASettingThatCannotBeReadIsRefused) {
  ::setenv("LIMBO_UNMAP_WAIT_MS", "long", 1);
  EXPECT_EQ(limbo_torch_install(), static_cast<int>(ErrorCode::kUnknownOption));
  EXPECT_FALSE(installed());
  ::unsetenv("LIMBO_UNMAP_WAIT_MS");
}

TEST_F(Install, MakingTheObjectLeavesTorchAsItWas) {
  const auto* before = torch_cuda::get();
  ASSERT_EQ(limbo_torch_make_allocator(), 0) << limbo_last_error();
  const auto object = pluggable::getCurrentAllocator();
  EXPECT_EQ(object.get(), &adapter());
  EXPECT_FALSE(installed());
  ASSERT_EQ(limbo_torch_restore_allocator(), 0);
  EXPECT_EQ(torch_cuda::get(), before);
  EXPECT_FALSE(installed());
  // As torch.cuda.memory.change_current_allocator does with it.
  pluggable::changeCurrentAllocator(object);
  EXPECT_TRUE(installed());
}

// Another plug-in, which nobody but torch owns, with two tensors' memory out.
struct PlugIn {
  PlugIn() {
    const auto made = std::make_shared<pluggable::CUDAPluggableAllocator>(
        [](std::size_t size_bytes, int, cudaStream_t) { return std::malloc(size_bytes); },
        [count = freed](void* data, std::size_t, int, cudaStream_t) {
          std::free(data);
          ++*count;
        });
    pluggable::changeCurrentAllocator(made);
    watched = made;
    for (c10::DataPtr& tensor : tensors) {
      void* data = made->malloc(1000, 0, nullptr);
      tensor = {data, data, made->raw_deleter(), c10::Device(c10::kCUDA, 0)};
    }
  }

  std::shared_ptr<int> freed = std::make_shared<int>(0);
  std::weak_ptr<pluggable::CUDAPluggableAllocator> watched;
  std::array<c10::DataPtr, 2> tensors;
};

TEST_F(Install, MakingTheObjectLeavesAnotherPlugInAsItWas) {
  PlugIn plug_in;
  ASSERT_EQ(limbo_torch_make_allocator(), 0) << limbo_last_error();
  plug_in.tensors[0].clear();  // as another thread may meanwhile
  EXPECT_EQ(*plug_in.freed, 1);
  ASSERT_EQ(limbo_torch_restore_allocator(), 0);
  ASSERT_FALSE(plug_in.watched.expired());
  EXPECT_EQ(torch_cuda::get(), plug_in.watched.lock().get());
  EXPECT_EQ(pluggable::getCurrentAllocator(), plug_in.watched.lock());
  plug_in.tensors[1].clear();
  EXPECT_EQ(*plug_in.freed, 2);
}

TEST_F(Install, WhatAnotherPlugInHandedOutIsFreedThroughIt) {
  PlugIn plug_in;  // one that is not initialised is not asked whether its memory is used
  install();
  void* ours = torch_cuda::raw_alloc(1000);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 1);
  for (c10::DataPtr& tensor : plug_in.tensors) tensor.clear();
  EXPECT_EQ(*plug_in.freed, 2);
  torch_cuda::raw_delete(ours);
  EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 0);
}

TEST_F(Install, AnEndWithoutABeginningIsRefused) {
  EXPECT_EQ(limbo_torch_restore_allocator(), static_cast<int>(ErrorCode::kBadArgument));
}

TEST_F(Install, ASecondBeginningBeforeTheEndIsRefused) {
  ASSERT_EQ(limbo_torch_make_allocator(), 0) << limbo_last_error();
  EXPECT_EQ(limbo_torch_make_allocator(), static_cast<int>(ErrorCode::kBadArgument));
  ASSERT_EQ(limbo_torch_restore_allocator(), 0);
}

// The allocating thread may hold the GIL, which the one that makes the object needs.
TEST_F(Install, AllocationsDoNotWaitForTheMakingOfTheObject) {
  ASSERT_EQ(limbo_torch_make_allocator(), 0) << limbo_last_error();
  auto other = std::async(std::launch::async, [] { return limbo_malloc(1000, 0, nullptr); });
  EXPECT_EQ(other.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  ASSERT_EQ(limbo_torch_restore_allocator(), 0);
  limbo_free(other.get(), 1000, 0, nullptr);
}

TEST_F(Install, WhoeverMakesTheObjectDoesNotInstallMeanwhile) {
  ASSERT_EQ(limbo_torch_make_allocator(), 0) << limbo_last_error();
  EXPECT_EQ(limbo_torch_install(), static_cast<int>(ErrorCode::kBadArgument));
  ASSERT_EQ(limbo_torch_restore_allocator(), 0);
  EXPECT_EQ(limbo_torch_install(), 0) << limbo_last_error();
}

TEST_F(Install, OthersWaitUntilTheObjectIsMade) {
  ASSERT_EQ(limbo_torch_make_allocator(), 0) << limbo_last_error();
  auto other = std::async(std::launch::async, [] {
    const int made = limbo_torch_make_allocator();
    return made == 0 ? limbo_torch_restore_allocator() : made;
  });
  EXPECT_EQ(other.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  ASSERT_EQ(limbo_torch_restore_allocator(), 0);
  EXPECT_EQ(other.get(), 0);
}

// The child has no thread that would end it.
TEST_F(Install, AForkWhileAnotherThreadMakesTheObjectLeavesTheChildFree) {
  const auto* before = torch_cuda::get();
  std::promise<int> made;
  std::promise<void> may_end;
  auto maker = std::async(std::launch::async, [&] {
    made.set_value(limbo_torch_make_allocator());
    may_end.get_future().wait();
    return limbo_torch_restore_allocator();
  });
  ASSERT_EQ(made.get_future().get(), 0);
  EXPECT_TRUE(holds_in_fork_child([&] {
    return torch_cuda::get() == before && limbo_torch_make_allocator() == 0 &&
           limbo_torch_restore_allocator() == 0 && torch_cuda::get() == before &&
           limbo_torch_install() == 0 && installed();
  }));
  may_end.set_value();
  EXPECT_EQ(maker.get(), 0);
  EXPECT_EQ(torch_cuda::get(), before);
}

TEST_F(Install, AForkByTheThreadThatMakesTheObjectLeavesItToBothToEndThat) {
  const auto* before = torch_cuda::get();
  ASSERT_EQ(limbo_torch_make_allocator(), 0) << limbo_last_error();
  EXPECT_TRUE(holds_in_fork_child([&] {
    return torch_cuda::get() == &adapter() && limbo_torch_restore_allocator() == 0 &&
           torch_cuda::get() == before && limbo_torch_install() == 0;
  }));
  ASSERT_EQ(limbo_torch_restore_allocator(), 0);
}

// An initialised allocator with one private pool and no memory, as torch's own can be.
class WithOnePool final : public pluggable::CUDAPluggableAllocator {
 public:
  WithOnePool()
      : CUDAPluggableAllocator([](std::size_t, int, cudaStream_t) -> void* { return nullptr; },
                               [](void*, std::size_t, int, cudaStream_t) {}) {}
  bool initialized() override { return true; }
  // Nothing is reserved: installing asks.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override {
    return {};
  }
  int getPoolUseCount(c10::DeviceIndex /*device*/, c10::MempoolId_t pool) override {
    return pool == kPool ? users : 0;
  }
  void releasePool(c10::DeviceIndex /*device*/, c10::MempoolId_t /*pool*/) override { --users; }
  void setUseOnOOM(c10::DeviceIndex /*device*/, c10::MempoolId_t /*pool*/, bool use) override {
    use_on_oom = use;
  }

  static constexpr c10::MempoolId_t kPool{0, 77};
  int users = 1;
  bool use_on_oom = true;
};

// torch releases a pool in a destructor, where nothing may be thrown.
TEST_F(Install, PoolsThatWereMadeBeforeAreReleasedWhereTheyWereMade) {
  auto with_pool = std::make_shared<WithOnePool>();
  const std::weak_ptr<WithOnePool> watched = with_pool;
  pluggable::changeCurrentAllocator(with_pool);
  with_pool.reset();
  install();
  ASSERT_EQ(torch_cuda::get(), &adapter());
  ASSERT_FALSE(watched.expired());
  EXPECT_EQ(torch_cuda::getPoolUseCount(0, WithOnePool::kPool), 1);
  torch_cuda::setUseOnOOM(0, WithOnePool::kPool, false);
  torch_cuda::releasePool(0, WithOnePool::kPool);
  torch_cuda::emptyCache(WithOnePool::kPool);
  EXPECT_EQ(watched.lock()->users, 0);
  EXPECT_FALSE(watched.lock()->use_on_oom);
  expect_starts_with(torch_error_of([] { torch_cuda::releasePool(0, WithOnePool::kPool); }),
                     "limbo[bad_argument]: ");
}

TEST_F(Install, MadeAgainWhereItIsInstalledAndInitialised) {
  install();
  torch_cuda::init(1);
  EXPECT_TRUE(adapter().initialized());
  ASSERT_EQ(limbo_torch_make_allocator(), 0) << limbo_last_error();
  ASSERT_EQ(limbo_torch_restore_allocator(), 0);
  EXPECT_TRUE(installed());
  EXPECT_TRUE(adapter().initialized());
}

TEST_F(Install, MemoryInUseIsCounted) {
  allocator_in_use().empty_cache();
  void* data = adapter().take(std::size_t{3} << 20, {0, nullptr});
  try {
    require_device_unused(adapter(), 0);
    FAIL() << "memory in use was not seen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAlreadyInUse);
    const std::string text = error.what();
    EXPECT_NE(text.find("\"limbo\" holds 20.00 MiB on device 0 (3.00 MiB allocated"),
              std::string::npos)
        << text;
  }
  adapter().give(data);
}

TEST(Versions, OnlyTheMinorVersionThatItWasBuiltForWillDo) {
  EXPECT_TRUE(same_minor_version(torch_running_under(), kTorchMajor, kTorchMinor));
  EXPECT_TRUE(same_minor_version("2.11.0+cu130", 2, 11));
  EXPECT_TRUE(same_minor_version("2.11", 2, 11));
  EXPECT_FALSE(same_minor_version("2.1.0", 2, 11));
  EXPECT_FALSE(same_minor_version("2.11.0", 2, 1));
  EXPECT_FALSE(same_minor_version("2.12.0a0", 2, 11));
  EXPECT_FALSE(same_minor_version("unknown", 2, 11));
  EXPECT_EQ(torch_built_for(), "2.11");
}

TEST(Versions, TheCopiesThatAreLoadedAreFoundByName) {
  const auto found = loaded_paths("libtorch_limbo");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].find("libtorch_limbo.so"), std::string::npos);
  EXPECT_TRUE(loaded_paths("libtorch_limb").empty());
}

TEST(CFunctions, ErrorsCarryCodeAndText) {
  EXPECT_STREQ(limbo_error_name(static_cast<int>(ErrorCode::kNotResizable)), "not_resizable");
  for (const int number : {-255, 0, 99, 257}) EXPECT_STREQ(limbo_error_name(number), "unknown");
  EXPECT_EQ(limbo_set_option("no_such_option", 1), static_cast<int>(ErrorCode::kUnknownOption));
  EXPECT_EQ(limbo_last_error_code(), static_cast<int>(ErrorCode::kUnknownOption));
  EXPECT_NE(std::string(limbo_last_error()).find("no_such_option"), std::string::npos);
  EXPECT_EQ(limbo_set_option(nullptr, 1), static_cast<int>(ErrorCode::kBadArgument));
  const char* const unnamed[] = {"exit_drain_ms", nullptr};
  const int64_t values[] = {17, 18};
  EXPECT_EQ(limbo_torch_enable(unnamed, values, 2), static_cast<int>(ErrorCode::kBadArgument));
  EXPECT_EQ(std::string(limbo_options_json()).find("\"value\":17"), std::string::npos);
  EXPECT_EQ(limbo_drain(-1, nullptr), static_cast<int>(ErrorCode::kBadArgument));
  EXPECT_EQ(limbo_drain_before_exit(), 0);
  int drained = 0;
  EXPECT_EQ(limbo_drain(0, &drained), 0);
  int64_t leases = -1;
  int64_t claims = -1;
  EXPECT_EQ(limbo_reap(1, &leases, &claims), 0);
  EXPECT_EQ(leases + claims, 0);
  EXPECT_EQ(limbo_reap(0, nullptr, nullptr), 0);
  EXPECT_EQ(drained, 1);
  EXPECT_NE(std::string(limbo_options_json()).find("\"exit_drain_ms\""), std::string::npos);
  EXPECT_STREQ(limbo_torch_built_for(), "2.11");
}

}  // namespace
}  // namespace limbo::testing
