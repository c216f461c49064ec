// What the process tests share: a sender and a reader on a machine of their own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/processes/peer.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"
#include "tests/support/sizes.h"

namespace limbo::testing {

// The code of the error that a peer answers with; "none" when it answers well.
template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
    return "none";
  } catch (const PeerError& failure) {
    return failure.code();
  }
}

// Peer options with these environment variables.
inline ChildOptions with(const std::vector<std::pair<std::string, std::string>>& variables) {
  ChildOptions options;
  for (const auto& [name, value] : variables) options.environment.emplace_back(name, value);
  return options;
}

inline bool on_simulated_device() {
  const char* chosen = std::getenv("LIMBO_DEVICE");
  return chosen == nullptr || std::string_view(chosen) != "cuda";
}

// For tests that need what only the simulated device can do: faults, counts, several GPUs.
#define LIMBO_NEEDS_SIMULATED_DEVICE() \
  if (!on_simulated_device()) GTEST_SKIP() << "needs the simulated device"

// What a test with these two ends with. The reader is looked at twice: the sender's memory is back
// only when it has let go, and what belonged to the connection goes when the sender has ended.
inline void expect_balance(Peer& sender, Peer& reader) {
  reader.expect_balance();
  sender.expect_balance();
  if (::testing::Test::HasFailure()) return;
  sender.process().kill();
  reader.expect_balance(true);
}

class SharingTest : public ::testing::Test {
 protected:
  explicit SharingTest(const ChildOptions& options = {}) : sender_(options), reader_(options) {}
  // Whatever the test did: nothing is in limbo, nothing held, the allocator is whole, and neither
  // process has more than before.
  void TearDown() override {
    if (sender_.process().running()) {
      EXPECT_TRUE(sender_.becomes("limbo", 0));
      EXPECT_TRUE(sender_.becomes("held_claims", 0));
      sender_.check_invariants();
    }
    expect_balance(sender_, reader_);
  }

  // Everything that the sender has lent is back, with no action by anyone.
  void expect_all_back(std::int64_t allocated = 0) {
    EXPECT_TRUE(sender_.becomes("limbo", 0));
    const auto numbers = sender_.stats();
    EXPECT_EQ(numbers.at("allocated"), allocated);
    EXPECT_EQ(numbers.at("active"), allocated);
  }

  Sandbox sandbox_;
  Peer sender_;
  Peer reader_;
};

}  // namespace limbo::testing
