// README.md's C++ example, as it stands there, between two processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "readme_example.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"

namespace limbo::testing {
namespace {

constexpr std::uint32_t kLent = 42;  // what the example fills its block with

LIMBO_CHILD_ROLE(readme_reader) {
  const Bytes message = child.receive_bytes();
  std::array<std::uint32_t, 1024> words{};
  read(message, words.data());
  const auto right = std::count(words.begin(), words.end(), kLent);
  child.send(std::to_string(right));
  child.park();
  return 0;
}

LIMBO_CHILD_ROLE(readme_lender) {
  child.send_bytes(lend({}));
  const auto over = [] {
    (void)process_sharing().collect();
    const DeviceStats stats = process_allocator().stats(0);
    return stats.limbo_blocks == 0 && stats.active_bytes[0].current == 0;
  };
  child.send(process_allocator().stats(0).limbo_blocks == 1 ? "in limbo" : "not in limbo");
  child.send(eventually(over) ? "back" : "not back");
  child.park();
  return 0;
}

TEST(Readme, TheExampleLendsABlockAndGetsItBack) {
  const Sandbox sandbox;
  ChildProcess lender("readme_lender");
  const Bytes message = lender.receive_bytes();
  lender.expect("in limbo");
  ChildProcess reader("readme_reader");
  reader.send_bytes(message);
  reader.expect("1024");
  lender.expect("back");
  reader.close_input();
  lender.close_input();
  reader.finish();
  lender.finish();
}

}  // namespace
}  // namespace limbo::testing
