// What `doctor` asks: on a machine that runs these tests everything works, and what is made not to
// work is told.
#include "ipc/probes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "allocator/device/sim_device.h"
#include "tests/support/balance.h"
#include "tests/support/sandbox.h"

namespace limbo {
namespace {

class ProbesTest : public testing::BalancedTest {
 protected:
  void warm_up() override { (void)process_device().device_count(); }
};

TEST_F(ProbesTest, WhatTestsNeedWorks) {
  for (const Probe& probe :
       {probe_runtime_directory(), probe_memfd_seals(), probe_pidfd(), probe_life_line(),
        probe_stream_memory_operations(process_device(), 0)}) {
    EXPECT_TRUE(probe.works) << probe.seen;
    EXPECT_FALSE(probe.seen.empty());
  }
}

TEST_F(ProbesTest, ADirectoryThatOthersCanEnterIsNamed) {
  testing::Sandbox sandbox;
  const auto open = sandbox.path() / "open";
  ASSERT_EQ(::mkdir(open.c_str(), 0755), 0);
  ASSERT_EQ(::setenv("LIMBO_RUNTIME_DIR", open.c_str(), 1), 0);
  const Probe probe = probe_runtime_directory();
  EXPECT_FALSE(probe.works);
  EXPECT_NE(probe.seen.find(open.string()), std::string::npos) << probe.seen;
  EXPECT_NE(probe.seen.find("chmod 700"), std::string::npos) << probe.seen;
}

TEST_F(ProbesTest, WithoutDescriptorsEachSaysSo) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(next);
  const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Probe probes[] = {probe_runtime_directory(), probe_memfd_seals(), probe_pidfd(),
                          probe_life_line()};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const Probe& probe : probes) {
    EXPECT_FALSE(probe.works);
    EXPECT_NE(probe.seen.find("Too many open files"), std::string::npos) << probe.seen;
    EXPECT_FALSE(probe.advice.empty()) << probe.seen;
  }
}

TEST_F(ProbesTest, AWriteThatFailsIsTold) {
  SimDevice& device = as_sim(process_device());
  device.faults().add("write_words:1=fail");
  const Probe probe = probe_stream_memory_operations(device, 0);
  device.faults().clear();
  EXPECT_FALSE(probe.works);
  EXPECT_FALSE(probe.advice.empty());
}

TEST_F(ProbesTest, MemoryThatCannotBeRegisteredLeavesNoStream) {
  SimDevice& device = as_sim(process_device());
  device.reset_calls();
  device.faults().add("register:1=fail");
  const Probe probe = probe_stream_memory_operations(device, 0);
  device.faults().clear();
  EXPECT_FALSE(probe.works);
  EXPECT_FALSE(probe.advice.empty());
  EXPECT_EQ(device.calls(CallKind::kCreateStream), 1U);
  EXPECT_EQ(device.calls(CallKind::kDestroyStream), 1U);
}

}  // namespace
}  // namespace limbo
