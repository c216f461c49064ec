// What goes wrong for people who share GPU memory with other software, by what must come out here.
// tests/README.md says which tests stand for which public report.
#include <cstdlib>
#include <sstream>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// ---- one block and its messages -----------------------------------------------------------------

// After one warm-up round the sender has B bytes allocated, and so it has after every round.
class KnownFailures : public SharingTest {
 protected:
  void SetUp() override {
    sender_.allocate("own", 3 * kMiB, 1);
    sender_.allocate("warm-up", 3 * kMiB, 1);  // of the same segment
    reader_.receive("warm-up", sender_.share("warm-up"));
    reader_.drop("warm-up");
    sender_.free("warm-up");
    EXPECT_TRUE(sender_.becomes("limbo", 0));
    allocated_before_ = sender_.stat("allocated");
    EXPECT_EQ(allocated_before_, 3 * static_cast<std::int64_t>(kMiB));
  }
  void expect_as_before() { expect_all_back(allocated_before_); }

  std::int64_t allocated_before_ = 0;
};

TEST_F(KnownFailures, AMessageThatIsOpenedZeroOneOrThreeTimesLeavesNothing) {
  for (const int opens : {0, 1, 3}) {
    sender_.allocate("b", kMiB, 4);
    const std::string message = sender_.share("b", opens == 0 ? 100 : -1);
    for (int open = 0; open < opens; ++open) {
      reader_.receive("r" + std::to_string(open), message);
      EXPECT_TRUE(reader_.holds("r" + std::to_string(open), 4));
    }
    sender_.free("b");
    EXPECT_GT(sender_.stat("limbo"), 0);
    for (int open = 0; open < opens; ++open) reader_.drop("r" + std::to_string(open));
    expect_as_before();
    EXPECT_EQ(sender_.stat("expired"), 1);
    EXPECT_EQ(error_of([&] { reader_.receive("late", message); }), opens == 0 ? "expired" : "gone");
  }
}

TEST_F(KnownFailures, AClaimReleasedOnceMoreFreesItsBlockOnce) {
  sender_.allocate("b", kMiB, 4);
  reader_.receive("r", sender_.share("b"));
  reader_.receive("other", sender_.share("b"));
  sender_.free("b");
  reader_.release("r");
  reader_.release("r");
  EXPECT_EQ(reader_.stat("double_releases"), 1);
  sender_.collect();
  EXPECT_GT(sender_.stat("limbo"), 0);  // the other claim is not used up
  EXPECT_TRUE(reader_.holds("other", 4));
  reader_.drop("other");
  reader_.drop("r");
  expect_as_before();
  // Freed once, the memory is handed out once.
  sender_.allocate("one", kMiB, 1);
  sender_.allocate("two", kMiB, 2);
  EXPECT_TRUE(sender_.holds("one", 1));
  EXPECT_TRUE(sender_.holds("two", 2));
  sender_.free("one");
  sender_.free("two");
  expect_as_before();
}

TEST_F(KnownFailures, ARefusedOpenIsBackAfterOneCollect) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  sender_.allocate("b", 32 * kMiB, 4);  // a segment that the reader has not mapped
  reader_.set_faults("open_memory:1=fail");
  EXPECT_EQ(error_of([&] { reader_.receive("r", sender_.share("b")); }), "device_error");
  sender_.free("b");
  sender_.collect();
  EXPECT_EQ(sender_.stat("allocated"), allocated_before_);
  EXPECT_EQ(sender_.stat("active"), allocated_before_);
  sender_.allocate("b", 32 * kMiB, 5);
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(reader_.holds("r", 5));
  reader_.drop("r");
  sender_.free("b");
  expect_as_before();
}

// Alive and idle for hundreds of times the limit.
TEST_F(KnownFailures, AnIdleReaderKeepsWhatItHoldsForAnyTime) {
  sender_.set_option("message_time_limit_ms", 1);
  sender_.allocate("b", kMiB, 0x1234'5678);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  for (int other = 0; other < 20; ++other) {
    sender_.allocate("other", kMiB, 9);
    (void)sender_.share("other", 20);
    sender_.free("other");
    EXPECT_TRUE(sender_.becomes("expired", other + 1));
  }
  EXPECT_EQ(sender_.stat("claims_swept"), 0);
  EXPECT_EQ(sender_.stat("leases_swept"), 0);
  EXPECT_EQ(sender_.stat("held_claims"), 1);
  EXPECT_TRUE(reader_.holds("r", 0x1234'5678));
  reader_.drop("r");
  expect_as_before();
}

// 12 bytes, and at the same address 4 bytes of something else; and the other way round.
TEST_F(KnownFailures, OneAddressSentInTwoSizes) {
  for (const auto& [first, second] : {std::pair{12, 4}, std::pair{4, 12}}) {
    std::uint32_t value = 0;
    for (const int size : {first, second}) {
      sender_.allocate("b", static_cast<std::size_t>(size), ++value);
      reader_.receive("r", sender_.share("b"));
      EXPECT_EQ(reader_.call("size r"), std::to_string(size));
      EXPECT_TRUE(reader_.holds("r", value));
      reader_.drop("r");
      sender_.free("b");
      expect_as_before();
    }
  }
}

TEST_F(KnownFailures, AMessageInOneProcessIsTheSameMemoryWithoutTheDriver) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b");
  const std::uint64_t calls = on_simulated_device() ? sender_.driver_calls() : 0;
  sender_.receive("self", message);
  if (on_simulated_device()) {
    EXPECT_EQ(sender_.driver_calls(), calls);
  }
  sender_.fill("self", 5);
  EXPECT_TRUE(sender_.holds("b", 5));
  EXPECT_EQ(sender_.stat("opens"), 0);
  sender_.free("b");
  EXPECT_TRUE(sender_.holds("self", 5));
  sender_.drop("self");
  expect_as_before();
}

// Sent on by somebody who ends, and read by a third.
TEST_F(KnownFailures, ABlockThatIsSentOnOutlivesWhoeverSentItOn) {
  Peer third;
  sender_.allocate("b", kMiB, 4);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  third.receive("t", reader_.share("r"));
  reader_.leave(0);
  EXPECT_TRUE(reader_.process().wait().success());
  EXPECT_TRUE(sender_.becomes("leases_connected", 1));
  EXPECT_GT(sender_.stat("limbo"), 0);
  sender_.allocate("canary", kMiB, 42);
  sender_.synchronize();
  EXPECT_TRUE(third.holds("t", 4));
  EXPECT_TRUE(sender_.holds("canary", 42));
  sender_.free("canary");
  third.drop("t");
  expect_as_before();
}

// ---- memory that a reader still maps ------------------------------------------------------------

TEST_F(KnownFailures, EmptyingTheCacheFreesNoSegmentUnderAReader) {
  sender_.allocate("b", 64 * kMiB, 4);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  sender_.empty_cache();
  EXPECT_GE(sender_.stat("reserved"), 64 * static_cast<std::int64_t>(kMiB));
  EXPECT_EQ(sender_.stat("limbo"), 64 * static_cast<std::int64_t>(kMiB));
  std::string text;
  try {
    sender_.allocate("more", std::size_t{1} << 40, 1);
  } catch (const PeerError& failure) {
    text = failure.what();
  }
  EXPECT_NE(text.find("64.00 MiB in 1 block(s) is freed and still lent"), std::string::npos)
      << text;
  EXPECT_NE(text.find("process " + std::to_string(reader_.process().pid()) + " holds 64.00 MiB"),
            std::string::npos)
      << text;
  EXPECT_TRUE(reader_.holds("r", 4));
  reader_.drop("r");
  EXPECT_TRUE(eventually([&] {
    sender_.empty_cache();
    return sender_.stat("reserved") < 64 * static_cast<std::int64_t>(kMiB);
  }));
  expect_as_before();
}

// The reader has let go, and its mapping is there still.
TEST_F(KnownFailures, MappedMemoryThatNobodyUsesIsNamed) {
  constexpr auto kSegment = 64 * static_cast<std::int64_t>(kMiB);
  sender_.allocate("b", 64 * kMiB, 4);
  reader_.receive("r", sender_.share("b"));
  reader_.drop("r");
  sender_.free("b");
  expect_as_before();
  reader_.process().stop();  // it cannot unmap
  sender_.empty_cache();
  EXPECT_EQ(sender_.stat("held_for_readers"), kSegment);
  EXPECT_GE(sender_.stat("reserved"), kSegment);
  std::string text;
  try {
    sender_.allocate("more", std::size_t{1} << 40, 1);
  } catch (const PeerError& failure) {
    text = failure.what();
  }
  EXPECT_NE(text.find("64.00 MiB is free but cannot be returned"), std::string::npos) << text;
  EXPECT_NE(
      text.find("process " + std::to_string(reader_.process().pid()) + " still maps 64.00 MiB"),
      std::string::npos)
      << text;
  sender_.allocate("b", 64 * kMiB, 5);  // what cannot be returned can be used
  EXPECT_EQ(sender_.stat("held_for_readers"), 0);
  sender_.free("b");
  reader_.process().resume();
  EXPECT_TRUE(eventually([&] {
    sender_.empty_cache();
    return sender_.stat("reserved") < kSegment;
  }));
  EXPECT_EQ(sender_.stat("held_for_readers"), 0);
}

// ---- many messages ------------------------------------------------------------------------------

// A sanitizer has a heap of its own, and keeps what was freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHeapIsCounted = false;
#else
constexpr bool kHeapIsCounted = true;
#endif

class ManyMessages : public ::testing::Test {
 protected:
  // Of its row a batch and what is kept take all. Threads keep nothing that is freed for themselves:
  // that would count as used.
  static constexpr int kBatch = 200;
  static constexpr int kBatchesAtOneTime = 4;
  static ChildOptions options() {
    return with(
        {{"LIMBO_LEDGER_CLAIMS", "1024"}, {"GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"}});
  }

  static std::string call(ChildProcess& child, const std::string& command) {
    child.send(command);
    return child.receive();
  }
  static std::map<std::string, std::int64_t> uses(ChildProcess& child) {
    std::istringstream words(call(child, "uses"));
    std::map<std::string, std::int64_t> numbers;
    std::string name;
    for (std::int64_t value = 0; words >> name >> value;) numbers[name] = value;
    return numbers;
  }
  void settle() {
    EXPECT_TRUE(eventually([&] {
      return uses(sender_).at("exports_open") == 0 && uses(reader_).at("releases_pending") == 0;
    }));
  }
  // Never more at one time than the row takes: a busy machine may be late with noting them.
  void send(int messages, const std::string& and_then = "receive") {
    for (int sent = 0; sent < messages; sent += kBatch) {
      if (sent > 0 && sent % (kBatchesAtOneTime * kBatch) == 0) settle();
      const std::string batch = call(sender_, "send " + std::to_string(kBatch));
      ASSERT_EQ(call(reader_, and_then + " " + batch), std::to_string(kBatch));
    }
  }
  // All that there can be at one time: what grows with that has grown.
  void fill_up() {
    send(kBatchesAtOneTime * kBatch, "keep");
    call(reader_, "drop");
    settle();
  }
  // What must be the same after any number of messages.
  static void expect_flat(const std::map<std::string, std::int64_t>& before,
                          const std::map<std::string, std::int64_t>& after) {
    for (const char* name :
         {"descriptors", "mappings", "dev_shm", "events", "limbo", "allocated", "active"}) {
      EXPECT_LE(after.at(name), before.at(name)) << name;
    }
    if (!kHeapIsCounted) return;
    // A pool may grow by a page here or there, and a driver's by more; a word that is lost with
    // every message shows.
    EXPECT_LE(after.at("heap_bytes"),
              before.at("heap_bytes") + (on_simulated_device() ? 32 : 128) * 1024);
    EXPECT_LE(after.at("resident_kib"),
              before.at("resident_kib") + (on_simulated_device() ? 1024 : 8192));
  }

  Sandbox sandbox_;
  ChildProcess sender_{"traffic", {}, options()};
  ChildProcess reader_{"traffic", {}, options()};
};

// Of 20,000, or as many as LIMBO_TEST_MESSAGES says.
TEST_F(ManyMessages, NothingGrowsWithTheirNumber) {
  const char* chosen = std::getenv("LIMBO_TEST_MESSAGES");
  const int messages = chosen != nullptr ? std::atoi(chosen) : 20'000;
  fill_up();
  send(3'000);  // every slot of the row was used
  settle();
  const auto sender_before = uses(sender_);
  const auto reader_before = uses(reader_);
  send(messages);
  settle();
  expect_flat(sender_before, uses(sender_));
  expect_flat(reader_before, uses(reader_));
}

// The reader always has the newest, and gives the last one back, while others allocate so much that
// collecting happens inside of allocations.
TEST_F(ManyMessages, ASharedBlockIsReplacedAThousandTimesWhileOthersAllocate) {
  call(sender_, "allocate_meanwhile");
  for (int round = 1; round <= 1000; ++round) {
    const std::string value = std::to_string(round);
    const std::string message = call(sender_, "replace " + value);
    ASSERT_EQ(call(reader_, "hold " + message + " " + value), "1") << round;
  }
  EXPECT_GT(std::stoull(call(sender_, "enough")), 100U);
  call(reader_, "drop");
  call(sender_, "drop");
  settle();
  EXPECT_EQ(uses(sender_).at("limbo"), 0);
  EXPECT_EQ(uses(sender_).at("active"), 0);
}

}  // namespace
}  // namespace limbo::testing
