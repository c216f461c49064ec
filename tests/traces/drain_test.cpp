// A sender's last message: a first open after its end fails, so its exit waits until what it sent is
// mapped, and nothing may say so too early.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

class DrainTest : public SharingTest {
 protected:
  // The reader is stopped for a while in its receive, at that fail point; meanwhile the sender ends.
  void expect_last_message_opens(const std::string& fail_point) {
    const std::string message = sender_.share("b");
    reader_.set_fail_points(fail_point);
    reader_.send("receive r " + message + " -1");
    EXPECT_TRUE(sender_.becomes("held_claims", 1));
    sender_.leave(0);
    EXPECT_EQ(error_of([&] { (void)reader_.answer(); }), "none");
    EXPECT_TRUE(sender_.process().wait().success());
    if (::testing::Test::HasFailure()) return;
    EXPECT_TRUE(reader_.holds("r", 5));
  }
  // Mapped and let go of, and the release noted.
  void open_and_drop() {
    reader_.receive("r", sender_.share("b"));
    reader_.drop("r");
    EXPECT_TRUE(sender_.becomes("held_claims", 0));
  }
};

// ---- claimed is not mapped ---------------------------------------------------------------------------

using DrainEndsAtClaimed = DrainTest;

TEST_F(DrainEndsAtClaimed, ASenderWaitsUntilWhatIsClaimedIsMapped) {
  sender_.allocate("b", kMiB, 5);
  expect_last_message_opens("receive.after_claim=delay:700");
}

// A mark is not a mapping: the mark comes before the open.
TEST_F(DrainEndsAtClaimed, ASenderWaitsUntilWhatIsMarkedIsOpen) {
  sender_.allocate("b", kMiB, 5);
  expect_last_message_opens("receive.after_mark_mapped=delay:700");
}

// ---- an idle mapping is closed when its owner has ended -----------------------------------------------

// The piece is open from an earlier message, so the sender may end; the claim keeps it open.
using HeldBehindClaim = DrainTest;

TEST_F(HeldBehindClaim, AnIdleMappingStaysForTheClaimThatIsOnItsWayToIt) {
  sender_.allocate("b", kMiB, 5);
  open_and_drop();
  EXPECT_EQ(reader_.stat("pieces_mapped"), 1);
  expect_last_message_opens("receive.after_claim=delay:700");
}

// Closed already, and the mark still there: what is opened anew is not open.
TEST_F(HeldBehindClaim, WhoOpensAnewBesideAClosingIsWaitedFor) {
  sender_.allocate("b", kMiB, 5);
  reader_.set_option("import_cache_pieces", 0);
  reader_.set_fail_points("unmap.after_close=delay:1500");
  open_and_drop();
  EXPECT_TRUE(eventually([&] { return reader_.passed("unmap.after_close") == 1; }));
  expect_last_message_opens("unmap.after_close=delay:1500,receive.after_claim=delay:700");
}

}  // namespace
}  // namespace limbo::testing
