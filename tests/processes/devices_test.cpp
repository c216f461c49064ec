// Several GPUs: which one a message is opened on, and that each has a mapping of its own.
#include "allocator/device/device.h"
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using DevicesTest = SharingTest;

#define LIMBO_NEEDS_TWO_GPUS()                                         \
  if (!on_simulated_device() && process_device().device_count() < 2) { \
    GTEST_SKIP() << "needs two GPUs, or the simulated device";         \
  }

// A process on a machine with two GPUs that sees these of them, in this order.
ChildOptions sees(const std::string& indices) {
  return with({{"LIMBO_SIM_DEVICES", "2"},
               {"LIMBO_SIM_VISIBLE", indices},
               {"CUDA_VISIBLE_DEVICES", indices}});
}

TEST_F(DevicesTest, MemoryOfAGpuThatIsNotVisibleNeedsANamedDevice) {
  LIMBO_NEEDS_TWO_GPUS();
  const Sandbox sandbox;
  Peer sender(sees("0"));
  Peer reader(sees("1"));
  sender.allocate("b", kMiB, 3);
  const std::string message = sender.share("b");
  try {
    reader.receive("r", message);
    FAIL() << "the GPU is not visible";
  } catch (const PeerError& failure) {
    const std::string text = failure.what();
    EXPECT_EQ(failure.code(), "device_not_visible");
    EXPECT_NE(text.find("GPU-"), text.rfind("GPU-")) << text;
    EXPECT_NE(text.find("device="), std::string::npos) << text;
  }
  reader.receive("r", message, 0);
  EXPECT_TRUE(reader.holds("r", 3));
  EXPECT_EQ(error_of([&] { reader.receive("s", message, 5); }), "bad_argument");
  reader.drop("r");
  sender.free("b");
  EXPECT_TRUE(sender.becomes("limbo", 0));
}

TEST_F(DevicesTest, GpusInAnotherOrderAreFoundByTheirUuid) {
  LIMBO_NEEDS_TWO_GPUS();
  const Sandbox sandbox;
  Peer sender(sees("0,1"));
  Peer reader(sees("1,0"));
  sender.allocate("b", kMiB, 3);
  reader.receive("r", sender.share("b"));
  EXPECT_EQ(reader.call("device r"), "1");
  EXPECT_TRUE(reader.holds("r", 3));
  reader.drop("r");
  sender.free("b");
  EXPECT_TRUE(sender.becomes("limbo", 0));
}

TEST_F(DevicesTest, OneMessageIsReadOnBothGpusOfAProcess) {
  LIMBO_NEEDS_TWO_GPUS();
  const Sandbox sandbox;
  Peer sender(sees("0,1"));
  Peer reader(sees("0,1"));
  sender.allocate("b", 32 * kMiB, 3);
  const std::string message = sender.share("b");
  reader.receive("here", message);
  reader.receive("there", message, 1);
  EXPECT_EQ(reader.call("device here"), "0");
  EXPECT_EQ(reader.call("device there"), "1");
  EXPECT_EQ(reader.stat("pieces_mapped"), 2);
  EXPECT_TRUE(reader.holds("here", 3));
  EXPECT_TRUE(reader.holds("there", 3));
  EXPECT_EQ(sender.stat("in_flight"), 0);  // one process, however often it opens

  // Each lets go by itself: the block is back after the second, the piece after both mappings.
  reader.drop("here");
  sender.free("b");
  sender.collect();
  EXPECT_EQ(sender.stat("limbo"), 32 * static_cast<std::int64_t>(kMiB));
  EXPECT_TRUE(reader.holds("there", 3));
  reader.drop("there");
  EXPECT_TRUE(sender.becomes("limbo", 0));
  EXPECT_TRUE(eventually([&] {
    sender.empty_cache();
    return sender.stat("reserved") == 0;
  }));
  EXPECT_EQ(reader.stat("pieces_mapped"), 0);
}

// The reader has what was sent last on one GPU, and is on its way to it on another when the sender ends,
// which waits for that: its memory cannot be opened after its end.
class SecondGpuTest : public DevicesTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(SecondGpuTest, ASenderWaitsUntilWhatItSentIsMappedThereToo) {
  LIMBO_NEEDS_TWO_GPUS();
  const Sandbox sandbox;
  Peer sender(sees("0,1"));
  Peer reader(sees("0,1"));
  sender.allocate("b", kMiB, 3);
  reader.receive("here", sender.share("b"));
  const std::string message = sender.share("b");
  reader.set_fail_points(std::string(GetParam()) + "=delay:700");
  reader.send("receive there " + message + " 1");
  EXPECT_TRUE(sender.becomes("held_claims", 2));
  sender.leave(0);
  EXPECT_EQ(error_of([&] { (void)reader.answer(); }), "none");
  EXPECT_TRUE(sender.process().wait().success());
  if (::testing::Test::HasFailure()) return;
  EXPECT_TRUE(reader.holds("there", 3));
}

// Neither is mapped yet; one of the two threads is slow.
TEST_P(SecondGpuTest, ASenderWaitsForTheLastOfTwoFirstOpens) {
  LIMBO_NEEDS_TWO_GPUS();
  const Sandbox sandbox;
  Peer sender(sees("0,1"));
  Peer reader(sees("0,1"));
  sender.allocate("b", kMiB, 3);
  const std::string here = sender.share("b");
  const std::string there = sender.share("b");
  reader.set_fail_points(std::string(GetParam()) + "=delay:700@1");
  reader.send("receive_at_once 0 " + here + " 1 " + there);
  EXPECT_TRUE(sender.becomes("held_claims", 2));
  EXPECT_TRUE(eventually([&] { return sender.mapped_by_others() == 1; }));
  sender.leave(0);
  EXPECT_EQ(reader.answer(), "none none");
  EXPECT_TRUE(sender.process().wait().success());
}

INSTANTIATE_TEST_SUITE_P(At, SecondGpuTest,
                         ::testing::Values("receive.after_claim", "receive.after_mark_mapped"),
                         [](const auto& at) {
                           return std::string(at.param == std::string("receive.after_claim")
                                                  ? "Claimed"
                                                  : "Marked");
                         });

TEST_F(DevicesTest, AKilledReaderOnAnotherGpuGivesEverythingBack) {
  LIMBO_NEEDS_TWO_GPUS();
  const Sandbox sandbox;
  Peer sender(sees("0"));
  Peer reader(sees("1"));
  sender.allocate("b", kMiB, 3);
  reader.receive("r", sender.share("b"), 0);
  reader.write_for("r", 4, std::chrono::milliseconds(100));
  sender.free("b");
  reader.process().kill();
  EXPECT_TRUE(sender.becomes("limbo", 0));
  EXPECT_TRUE(sender.becomes("leases_swept", 1));
}

// A process's own message is its own memory, on the GPU that it is on.
TEST_F(DevicesTest, AnOwnMessageOnAnotherGpuIsAnErrorAndHoldsNothing) {
  LIMBO_NEEDS_TWO_GPUS();
  const Sandbox sandbox;
  Peer sender(sees("0,1"));
  sender.allocate("b", kMiB, 3);
  const std::string message = sender.share("b");
  try {
    sender.receive("own", message, 1);
    FAIL() << "it is on GPU 0";
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.code(), "bad_argument");
    EXPECT_NE(std::string(failure.what()).find("device 0"), std::string::npos) << failure.what();
  }
  sender.receive("own", message, 0);
  EXPECT_TRUE(sender.holds("own", 3));
  sender.drop("own");
  sender.free("b");
  EXPECT_TRUE(sender.becomes("limbo", 0));
}

}  // namespace
}  // namespace limbo::testing
