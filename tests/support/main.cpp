// The main of every test executable: child roles first, then GoogleTest in a sandbox.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "allocator/device/device.h"
#include "tests/support/child_process.h"
#include "tests/support/sandbox.h"

namespace {

// With LIMBO_DEVICE=cuda and no GPU every test is skipped, each by its name.
class GpuWhereAskedFor : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* device = std::getenv("LIMBO_DEVICE");
    if (device == nullptr || std::string_view(device) != "cuda") return;
    std::string why;
    skipped_ = !limbo::cuda_available(&why);
    if (skipped_) GTEST_SKIP() << why;
  }

  // GoogleTest 1.12 counts tests that an environment skipped as passed; ctest reads this.
  void TearDown() override {
    if (!skipped_) return;
    const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
    for (int i = 0; i < all.total_test_suite_count(); ++i) {
      const ::testing::TestSuite& suite = *all.GetTestSuite(i);
      for (int j = 0; j < suite.total_test_count(); ++j) {
        const ::testing::TestInfo& test = *suite.GetTestInfo(j);
        if (!test.should_run()) continue;
        std::printf("[  SKIPPED ] %s.%s\n", suite.name(), test.name());
      }
    }
  }

 private:
  bool skipped_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (const auto status = limbo::testing::run_child_role(argc, argv)) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::AddGlobalTestEnvironment(new GpuWhereAskedFor);  // GoogleTest's to delete
  const limbo::testing::Sandbox sandbox;
  return RUN_ALL_TESTS();
}
