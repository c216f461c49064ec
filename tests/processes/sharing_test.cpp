// Two real processes and one block: what everybody does, and what goes wrong in everyday ways.
#include <gtest/gtest.h>

#include "tests/processes/peer.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"

namespace limbo::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
using std::chrono::milliseconds;

// The code of the error that a call ends with; "none" when it ends well.
template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
    return "none";
  } catch (const PeerError& failure) {
    return failure.code();
  }
}

// A sender and a reader, on a machine of their own.
class SharingTest : public ::testing::Test {
 protected:
  void TearDown() override {
    // Whatever the test did: nothing is allocated, nothing in limbo, nothing open.
    if (!sender_.process().running()) return;
    EXPECT_TRUE(sender_.becomes("limbo", 0));
    sender_.collect();
    sender_.check_invariants();
    EXPECT_EQ(sender_.stat("held_claims"), 0);
  }

  Sandbox sandbox_;
  Peer sender_;
  Peer reader_;
};

TEST_F(SharingTest, ABlockTravelsAndComesBack) {
  sender_.allocate("b", kMiB, 7);
  const std::int64_t before = sender_.stat("allocated");
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(reader_.holds("r", 7));
  sender_.free("b");
  EXPECT_EQ(sender_.stat("limbo"), before);
  EXPECT_EQ(sender_.stat("allocated"), 0);
  reader_.release("r");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  EXPECT_TRUE(sender_.becomes("active", 0));
  EXPECT_TRUE(sender_.becomes("exports_open", 0));
}

}  // namespace
}  // namespace limbo::testing
