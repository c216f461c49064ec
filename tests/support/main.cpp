// The main of every test executable: child roles first, then GoogleTest in a sandbox.
#include <gtest/gtest.h>

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
    if (!limbo::cuda_available(&why)) GTEST_SKIP() << why;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (const auto status = limbo::testing::run_child_role(argc, argv)) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::AddGlobalTestEnvironment(new GpuWhereAskedFor);  // GoogleTest's to delete
  const limbo::testing::Sandbox sandbox;
  return RUN_ALL_TESTS();
}
