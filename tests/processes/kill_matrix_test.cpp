// Every process is killed at every transition of the protocol, and nothing is lost.
//
// One test per fail point: whoever passes it dies of it in the middle of a scenario that passes every
// point; the others must end well, and what the dead one held must come back.
#include "tests/processes/every_point.h"

namespace limbo::testing {
namespace {

class KillMatrixTest : public EveryPointTest {
 protected:
  KillMatrixTest() : EveryPointTest(Fate::kDies) {}
};

TEST_P(KillMatrixTest, NothingIsLost) {
  if (!can_be_passed()) {
    LIMBO_NEEDS_SIMULATED_DEVICE();
  }
  arm("crash");
  play();
  ASSERT_TRUE(dead(passer())) << point() << " was not passed";
  EXPECT_TRUE(passer().process().wait().signalled);

  if (!dead(sender_)) {
    give_back_lent();
    EXPECT_TRUE(sender_.becomes("limbo", 0));
    Peer next;
    expect_works(sender_, next);
  }
  if (!dead(reader_)) {
    give_back_opened();
    EXPECT_TRUE(reader_.becomes("releases_pending", 0));
    EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
    Peer next;
    expect_works(next, reader_);
  }
}

INSTANTIATE_TEST_SUITE_P(AllPoints, KillMatrixTest,
                         ::testing::Range(std::size_t{0}, kFailPointCount), name_of_point);

}  // namespace
}  // namespace limbo::testing
