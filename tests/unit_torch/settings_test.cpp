#include "hooks/settings.h"

#include <c10/core/AllocatorConfig.h>

#include <bit>
#include <string>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/capi.h"
#include "hooks/install.h"
#include "tests/support/child_process.h"
#include "tests/support/sizes.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

std::size_t reserved_mib() {
  const auto bytes =
      static_cast<std::size_t>(adapter().getDeviceStats(0).reserved_bytes[0].current);
  return bytes / kMiB;
}

// What is reserved when there was a free block of `free_mib`, and `wanted_mib` are asked for; in
// MiB.
std::size_t reserved_for(std::size_t free_mib, std::size_t wanted_mib) {
  adapter().emptyCache({0, 0});
  adapter().raw_delete(adapter().raw_alloc(free_mib * kMiB));
  void* data = adapter().raw_alloc(wanted_mib * kMiB);
  const std::size_t reserved = reserved_mib();
  adapter().raw_delete(data);
  adapter().emptyCache({0, 0});
  return reserved;
}

class Settings : public TorchTest {
 protected:
  void SetUp() override {
    TorchTest::SetUp();
    install();
  }
  void TearDown() override {
    c10::CachingAllocator::setAllocatorSettings("max_non_split_rounding_mb:20");
    adapter().setMemoryFraction(1, 0);
    TorchTest::TearDown();
  }
};

TEST_F(Settings, SizesAreFollowedWhileTheProgramRuns) {
  EXPECT_EQ(reserved_for(40, 3), 40U);  // cut
  c10::CachingAllocator::setAllocatorSettings("max_split_size_mb:24");
  EXPECT_EQ(reserved_for(40, 3), 60U);  // not cut
  EXPECT_EQ(adapter().getDeviceStats(0).max_split_size, 24 * static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(reserved_for(80, 30), 110U);  // too much would be wasted
  c10::CachingAllocator::setAllocatorSettings("max_split_size_mb:24,max_non_split_rounding_mb:64");
  EXPECT_EQ(reserved_for(80, 30), 80U);
  c10::CachingAllocator::setAllocatorSettings("");
  EXPECT_EQ(reserved_for(40, 3), 40U);
}

TEST_F(Settings, TheThresholdIsFollowedWhileTheProgramRuns) {
  const auto total = static_cast<double>(adapter().getMemoryInfo(0).second);
  adapter().setMemoryFraction(static_cast<double>(100 * kMiB) / total, 0);
  const auto reserved_for_a_small_one = [] {
    adapter().emptyCache({0, 0});
    adapter().raw_delete(adapter().raw_alloc(60 * kMiB));
    void* data = adapter().raw_alloc(512);
    const std::size_t reserved = reserved_mib();
    adapter().raw_delete(data);
    adapter().emptyCache({0, 0});
    return reserved;
  };
  EXPECT_EQ(reserved_for_a_small_one(), 62U);
  c10::CachingAllocator::setAllocatorSettings("garbage_collection_threshold:0.5");
  EXPECT_EQ(reserved_for_a_small_one(), 2U);
  c10::CachingAllocator::setAllocatorSettings("garbage_collection_threshold:0.9");
  EXPECT_EQ(reserved_for_a_small_one(), 62U);
}

// The size of the block that serves a request; both in MiB.
std::size_t block_mib_for(std::size_t wanted_mib) {
  const auto active = [] {
    return static_cast<std::size_t>(adapter().getDeviceStats(0).active_bytes[0].current);
  };
  const std::size_t before = active();
  void* data = adapter().raw_alloc(wanted_mib * kMiB);
  const std::size_t size_bytes = active() - before;
  adapter().raw_delete(data);
  adapter().emptyCache({0, 0});
  return size_bytes / kMiB;
}

TEST_F(Settings, RequestsAreRoundedWhileTheProgramRuns) {
  EXPECT_EQ(block_mib_for(84), 84U);
  c10::CachingAllocator::setAllocatorSettings("roundup_power2_divisions:4");
  EXPECT_EQ(block_mib_for(84), 96U);
  EXPECT_EQ(block_mib_for(128), 128U);
  // Another setting takes it back.
  c10::CachingAllocator::setAllocatorSettings("garbage_collection_threshold:0.5");
  EXPECT_EQ(block_mib_for(84), 84U);
  c10::CachingAllocator::setAllocatorSettings(
      "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]");
  EXPECT_EQ(block_mib_for(84), 88U);
  EXPECT_EQ(block_mib_for(400), 512U);
  EXPECT_EQ(block_mib_for(1034), 1034U);
  c10::CachingAllocator::setAllocatorSettings("");
  EXPECT_EQ(block_mib_for(84), 84U);
}

// c10 says which interval of its list a size belongs to: so does the policy.
TEST_F(Settings, IntervalsAreC10s) {
  c10::CachingAllocator::setAllocatorSettings(
      "roundup_power2_divisions:[4:16,8:2,32:8,512:4,2048:1,>:2]");
  const AllocationPolicy policy = policy_in_settings();
  for (std::size_t size = 600; size < std::size_t{1} << 40; size += size / 3 + 1) {
    const std::size_t divisions =
        c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions(size);
    const std::size_t rounded = policy.block_size(size);
    ASSERT_GE(rounded, size);
    if (divisions > 1 && size > 512 * divisions) {
      EXPECT_EQ(rounded % (std::bit_floor(size) / divisions), 0U) << size;
      EXPECT_LT(rounded - size, std::bit_floor(size) / divisions) << size;
    } else {
      EXPECT_EQ(rounded, (size + 511) / 512 * 512);
    }
  }
  c10::CachingAllocator::setAllocatorSettings("");
}

TEST_F(Settings, ReuseInCapturesIsFollowed) {
  c10::CachingAllocator::setAllocatorSettings("graph_capture_record_stream_reuse:True");
  EXPECT_TRUE(policy_in_settings().reuse_in_capture);
  c10::CachingAllocator::setAllocatorSettings("graph_capture_record_stream_reuse:False");
  EXPECT_FALSE(policy_in_settings().reuse_in_capture);
}

TEST_F(Settings, LargeSegmentsMayHaveAnotherSize) {
  EXPECT_EQ(reserved_for(40, 44), 84U);
  c10::CachingAllocator::setAllocatorSettings("large_segment_size_mb:31");
  void* data = adapter().raw_alloc(3 * kMiB);
  EXPECT_EQ(reserved_mib(), 32U);
  adapter().raw_delete(data);
  c10::CachingAllocator::setAllocatorSettings("large_segment_size_mb:20");
  adapter().emptyCache({0, 0});
  data = adapter().raw_alloc(3 * kMiB);
  EXPECT_EQ(reserved_mib(), 20U);
  adapter().raw_delete(data);
}

TEST_F(Settings, WhatTorchRefusesIsRefusedAsBefore) {
  // The second is known to the reader that was there before Limbo's.
  for (const char* text : {"garbage_collection_threshold:7", "per_process_memory_fraction:7"}) {
    EXPECT_THROW(c10::CachingAllocator::setAllocatorSettings(text), c10::Error) << text;
  }
  EXPECT_EQ(reserved_for(40, 3), 40U);
}

// ---- from the environment -----------------------------------------------------------------------

LIMBO_CHILD_ROLE(reserve_with_settings) {
  child.send(limbo_torch_install() == 0 ? "installed" : limbo_last_error());
  child.send(std::to_string(reserved_for(40, 3)));
  while (const auto text = child.try_receive()) {
    c10::CachingAllocator::setAllocatorSettings(*text);
    child.send("set");
  }
  return 0;
}

ChildOptions with_settings(const std::string& text) {
  ChildOptions options;
  options.environment.emplace_back("PYTORCH_CUDA_ALLOC_CONF", text);
  return options;
}

TEST_F(Settings, TheEnvironmentsAreFollowedWithoutAWarning) {
  ChildProcess child("reserve_with_settings", {},
                     with_settings("max_split_size_mb:24,max_non_split_rounding_mb:30,"
                                   "garbage_collection_threshold:0.9"));
  child.expect("installed");
  child.expect("60");
  child.close_input();
  child.finish();
  EXPECT_EQ(child.output(), "");
}

// 11 MiB are 12 here; a limit of 12 for what is cut would leave new segments uncut.
TEST_F(Settings, SizesThatAreNoMultipleOfASegmentsUnitAreRoundedUp) {
  ChildProcess child("reserve_with_settings", {},
                     with_settings("large_segment_size_mb:11,max_split_size_mb:12,"
                                   "max_non_split_rounding_mb:12"));
  child.expect("installed");
  child.expect("52");  // 40 that are not cut, and a large segment
  child.close_input();
  child.finish();
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST_F(Settings, WhatHasNoEffectIsWarnedAboutOnce) {
  ChildProcess child("reserve_with_settings", {}, with_settings("expandable_segments:True"));
  child.expect("installed");
  child.expect("40");
  const std::string output = child.output();
  EXPECT_EQ(times(output, "expandable_segments:True has no effect yet"), 1U) << output;
  for (int round = 0; round < 2; ++round) {
    child.send("expandable_segments:True");
    child.expect("set");
  }
  child.close_input();
  child.finish();
  const std::string later = child.output().substr(output.size());
  EXPECT_EQ(times(later, "no effect"), 0U) << later;
}

TEST_F(Settings, WhatIsSwitchedOffIsNotWarnedAbout) {
  ChildProcess child(
      "reserve_with_settings", {},
      with_settings("expandable_segments:False,graph_capture_record_stream_reuse:False"));
  child.expect("installed");
  child.expect("40");
  child.close_input();
  child.finish();
  EXPECT_EQ(child.output(), "");
}

LIMBO_CHILD_ROLE(install_and_report) {
  child.send(std::to_string(limbo_torch_install()));
  child.send(limbo_last_error());
  return 0;
}

TEST_F(Settings, ABackendInTheEnvironmentIsRefused) {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    ChildOptions options;
    options.environment.emplace_back(name, "max_split_size_mb:100,backend:native");
    ChildProcess child("install_and_report", {}, options);
    EXPECT_EQ(child.receive(), std::to_string(static_cast<int>(ErrorCode::kBadArgument)));
    EXPECT_NE(child.receive().find("backend"), std::string::npos);
    child.finish();
  }
}

TEST_F(Settings, WhatTorchRefusesOfTheEnvironmentIsRefused) {
  ChildProcess child("install_and_report", {}, with_settings("no_such_key:1"));
  EXPECT_EQ(child.receive(), std::to_string(static_cast<int>(ErrorCode::kBadArgument)));
  EXPECT_NE(child.receive().find("no_such_key"), std::string::npos);
  child.finish();
}

TEST(SettingsText, KeysAreFoundAtTheOuterLevelOnly) {
  EXPECT_TRUE(settings_name("backend:native", "backend"));
  EXPECT_TRUE(settings_name("a:1, backend : native", "backend"));
  EXPECT_TRUE(settings_name("roundup_power2_divisions:[256:1,512:2],backend:x", "backend"));
  EXPECT_FALSE(settings_name("roundup_power2_divisions:[backend:1]", "backend"));
  EXPECT_FALSE(settings_name("my_backend:1", "backend"));
  EXPECT_FALSE(settings_name("", "backend"));
}

}  // namespace
}  // namespace limbo::testing
