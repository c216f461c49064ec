// Releases on streams that are captured or destroyed before the release gets there.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class ReleaseTest : public SharingTest {
 protected:
  // The reader's releases of `count` messages of one block wait behind a kernel on stream "s".
  void release_behind_a_kernel(int count) {
    sender_.allocate("b", kMiB, 1);
    reader_.use_stream("s");
    for (int index = 0; index < count; ++index) {
      reader_.receive("r" + std::to_string(index), sender_.share("b"));
    }
    reader_.write_for("r0", 3, milliseconds(500));
    for (int index = 0; index < count; ++index) reader_.drop("r" + std::to_string(index));
    sender_.free("b");
  }
};

constexpr int kTakenAtOnce = 256;  // releases that a stream takes before earlier ones have landed
constexpr int kLater = 10;

// A graph that contained them would give back, at every launch, what the slots hold by then.
TEST_F(ReleaseTest, ALateReleaseStaysOutOfACapture) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  release_behind_a_kernel(kTakenAtOnce + kLater);
  reader_.begin_capture();
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  reader_.end_capture();
  reader_.synchronize();
  sender_.collect();
  EXPECT_EQ(sender_.stat("held_claims"), kLater);
  EXPECT_GT(sender_.stat("limbo"), 0);
  reader_.process().kill();
  expect_all_back();
}

TEST_F(ReleaseTest, AStreamThatIsDestroyedBeforeTheReleaseHoldsNothingBack) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // NVIDIA's driver crashes on a destroyed handle
  sender_.allocate("b", kMiB, 1);
  reader_.use_stream("s");
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  reader_.use_stream("default");
  reader_.destroy_stream("s");
  reader_.drop("r");
  expect_all_back();
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  EXPECT_EQ(reader_.process().output(), "");
}

TEST_F(ReleaseTest, AStreamThatIsDestroyedBehindItsReleasesHoldsNothingBack) {
  LIMBO_NEEDS_SIMULATED_DEVICE();  // NVIDIA's driver crashes on a destroyed handle
  release_behind_a_kernel(kTakenAtOnce + kLater);
  reader_.use_stream("default");
  reader_.destroy_stream("s");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  expect_all_back();
}

}  // namespace
}  // namespace limbo::testing
