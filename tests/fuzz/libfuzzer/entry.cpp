// What libFuzzer calls. Each program has one target linked in.
#include <cstdio>
#include <cstdlib>

#include "allocator/error.h"
#include "tests/fuzz/target.h"
#include "tests/support/child_process.h"
#include "tests/support/sandbox.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (const auto status = limbo::testing::run_child_role(*argc, *argv)) std::exit(*status);
  static const limbo::testing::Sandbox sandbox;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes) {
  const limbo::fuzz::Target target = limbo::fuzz::targets().begin()->second;
  try {
    target(std::as_bytes(std::span(data, size_bytes)));
  } catch (const std::exception& broken) {
    std::fprintf(stderr, "broken: %s\n", broken.what());
    std::abort();
  }
  return 0;
}
