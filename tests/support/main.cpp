// The main of every test executable: child roles first, then GoogleTest in a sandbox.
#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/sandbox.h"

int main(int argc, char** argv) {
  if (const auto status = limbo::testing::run_child_role(argc, argv)) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  const limbo::testing::Sandbox sandbox;
  return RUN_ALL_TESTS();
}
