// Two real processes and one block: what everybody does, and what goes wrong in everyday ways.
#include <filesystem>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

TEST_F(SharingTest, ABlockTravelsAndComesBack) {
  sender_.allocate("b", kMiB, 7);
  const std::int64_t before = sender_.stat("allocated");
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(reader_.holds("r", 7));
  sender_.free("b");
  EXPECT_EQ(sender_.stat("limbo"), before);
  EXPECT_EQ(sender_.stat("allocated"), 0);
  reader_.release("r");
  expect_all_back();
  EXPECT_TRUE(sender_.becomes("exports_open", 0));
}

TEST_F(SharingTest, WhatTheReaderWritesTheSenderReads) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  reader_.fill("r", 2);
  reader_.synchronize();
  EXPECT_TRUE(sender_.holds("b", 2));
  reader_.release("r");
  sender_.free("b");
}

TEST_F(SharingTest, AReaderWaitsForWhatTheSenderHadQueued) {
  sender_.allocate("b", kMiB, 1);
  sender_.write_for("b", 5, milliseconds(300));
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(reader_.holds("r", 5));
  reader_.release("r");
  sender_.free("b");
}

// Allocated and written on one stream, sent by a thread whose current stream is another.
TEST_F(SharingTest, AReaderWaitsForTheBlocksHomeStreamToo) {
  sender_.use_stream("home");
  sender_.allocate("b", kMiB, 1);
  sender_.write_for("b", 5, milliseconds(300));
  sender_.use_stream("other");
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(reader_.holds("r", 5));
  reader_.release("r");
  sender_.free("b");
}

TEST_F(SharingTest, AReleaseWaitsForTheReadersWork) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  reader_.write_for("r", 9, milliseconds(500));
  reader_.release("r");  // the host goes on
  EXPECT_GT(sender_.stat("limbo"), 0);
  expect_all_back();
  // The block is the sender's again, and nobody writes it any more.
  sender_.allocate("canary", kMiB, 42);
  reader_.synchronize();
  EXPECT_TRUE(sender_.holds("canary", 42));
  sender_.free("canary");
}

TEST_F(SharingTest, AReleaseWaitsForEveryStreamThatUsedTheBlock) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  reader_.record_stream("r", "side");
  reader_.use_stream("side");
  reader_.write_for("r", 9, milliseconds(500));
  reader_.release("r");
  EXPECT_EQ(reader_.stat("releases_pending"), 1);
  EXPECT_GT(sender_.stat("limbo"), 0);
  expect_all_back();
  sender_.allocate("canary", kMiB, 42);
  reader_.synchronize();
  EXPECT_TRUE(sender_.holds("canary", 42));
  sender_.free("canary");
}

TEST_F(SharingTest, ManyReleasesBehindALongKernelDoNotBlockTheHost) {
  constexpr int kBlocks = 700;  // more than a stream takes of ours
  sender_.allocate("b", kMiB, 1);
  for (int index = 0; index < kBlocks; ++index) {
    reader_.receive("r" + std::to_string(index), sender_.share("b"));
  }
  reader_.write_for("r0", 3, milliseconds(1500));
  for (int index = 0; index < kBlocks; ++index) reader_.release("r" + std::to_string(index));
  EXPECT_EQ(reader_.stat("releases_pending"), kBlocks);  // the kernel still runs
  sender_.free("b");
  EXPECT_TRUE(reader_.becomes("releases_pending", 0));
  expect_all_back();
}

TEST_F(SharingTest, ASecondReleaseIsCountedAndDoesNothing) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  reader_.release("r");
  reader_.release("r");
  reader_.drop("r");
  EXPECT_EQ(reader_.stat("double_releases"), 1);
  EXPECT_EQ(reader_.stat("releases"), 1);
  expect_all_back();
}

// ---- a message opened 0, 1 and 3 times ----------------------------------------------------------

TEST_F(SharingTest, AMessageThatNobodyOpensExpires) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b", 100);
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("expired", 1));
  expect_all_back();
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "expired");
}

TEST_F(SharingTest, AMessageOpenedThreeTimesGivesTheBlockThreeTimes) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b");
  for (const char* name : {"one", "two", "three"}) {
    reader_.receive(name, message);
    EXPECT_TRUE(reader_.holds(name, 4));
  }
  sender_.free("b");
  reader_.drop("one");
  reader_.drop("two");
  EXPECT_TRUE(reader_.holds("three", 4));
  EXPECT_GT(sender_.stat("limbo"), 0);
  reader_.drop("three");
  expect_all_back();
  EXPECT_EQ(error_of([&] { reader_.receive("late", message); }), "gone");
}

TEST_F(SharingTest, AMessageStaysOpenableWhileItsOwnerHoldsTheBlock) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b");
  for (int round = 0; round < 3; ++round) {
    reader_.receive("r", message);
    EXPECT_TRUE(reader_.holds("r", 4));
    reader_.drop("r");
    EXPECT_TRUE(eventually([&] {
      sender_.collect();
      return sender_.stat("held_claims") == 0 && sender_.stat("in_flight") == 0;
    }));
  }
  sender_.free("b");
  expect_all_back();
}

TEST_F(SharingTest, AWithdrawnMessageIsRefusedAndHoldersKeepIt) {
  sender_.allocate("b", kMiB, 4);
  const std::string held = sender_.share("b");
  reader_.receive("r", held);
  const std::string unopened = sender_.share("b");
  sender_.withdraw(held);
  sender_.withdraw(unopened);
  EXPECT_EQ(error_of([&] { reader_.receive("late", unopened); }), "withdrawn");
  sender_.free("b");
  EXPECT_TRUE(reader_.holds("r", 4));
  EXPECT_GT(sender_.stat("limbo"), 0);
  reader_.drop("r");
  expect_all_back();
  EXPECT_EQ(error_of([&] { reader_.withdraw(held); }), "bad_argument");
}

// ---- one process --------------------------------------------------------------------------------

TEST_F(SharingTest, AMessageOpenedWhereItWasSentIsTheBlockItself) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b");
  const std::uint64_t calls = on_simulated_device() ? sender_.driver_calls() : 0;
  sender_.receive("self", message);
  sender_.release("self");
  if (on_simulated_device()) {
    EXPECT_EQ(sender_.driver_calls(), calls);
  }
  sender_.receive("again", sender_.share("b"));
  sender_.free("b");
  EXPECT_TRUE(sender_.holds("again", 4));
  EXPECT_GT(sender_.stat("limbo"), 0);
  sender_.drop("again");
  expect_all_back();
}

TEST_F(SharingTest, ABlockOpenedOnAnotherStreamOfItsProcessWaitsForThatStream) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b");
  sender_.use_stream("side");
  sender_.receive("self", message);
  sender_.use_stream("default");
  sender_.free("b");  // in limbo before the reader on "side" is done
  sender_.use_stream("side");
  sender_.write_for("self", 8, milliseconds(400));
  sender_.release("self");
  EXPECT_GT(sender_.stat("active"), 0);
  sender_.use_stream("default");
  sender_.allocate("canary", kMiB, 42);  // elsewhere, or behind the reader on "side"
  sender_.synchronize();
  EXPECT_TRUE(sender_.holds("canary", 42));
  sender_.free("canary");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  sender_.empty_cache();
  EXPECT_EQ(sender_.stat("active"), 0);
  EXPECT_EQ(sender_.stat("reserved"), 0);
}

// ---- sizes --------------------------------------------------------------------------------------

TEST_F(SharingTest, ABlockSentAgainFromTheSameAddressHasItsOwnSizeAndValues) {
  for (const auto& [first, second] : {std::pair{12, 4}, std::pair{4, 12}}) {
    sender_.allocate("b", static_cast<std::size_t>(first), 1);
    reader_.receive("r", sender_.share("b"));
    EXPECT_TRUE(reader_.holds("r", 1));
    reader_.drop("r");
    sender_.free("b");
    expect_all_back();
    sender_.allocate("b", static_cast<std::size_t>(second), 2);
    reader_.receive("r", sender_.share("b"));
    EXPECT_EQ(reader_.call("size r"), std::to_string(second));
    EXPECT_TRUE(reader_.holds("r", 2));
    reader_.drop("r");
    sender_.free("b");
    expect_all_back();
  }
}

// ---- pieces -------------------------------------------------------------------------------------

TEST_F(SharingTest, AMappingIsKeptForTheNextBlockAndClosedWhenItsOwnerWantsIt) {
  for (int round = 0; round < 5; ++round) {
    sender_.allocate("b", 32 * kMiB, 1);
    reader_.receive("r", sender_.share("b"));
    reader_.drop("r");
    sender_.free("b");
    expect_all_back();
  }
  EXPECT_EQ(reader_.stat("opens"), 1);
  EXPECT_EQ(reader_.stat("closes"), 0);
  EXPECT_GT(sender_.stat("reserved"), 0);
  EXPECT_TRUE(eventually([&] {
    sender_.empty_cache();
    return sender_.stat("reserved") == 0;
  }));
  EXPECT_EQ(reader_.stat("pieces_mapped"), 0);
  EXPECT_EQ(reader_.stat("closes"), 1);
}

TEST_F(SharingTest, AWantedPieceStaysMappedWhileABlockOfItIsHeld) {
  sender_.allocate("held", 12 * kMiB, 6);
  reader_.receive("r", sender_.share("held"));
  sender_.free("held");
  sender_.empty_cache();
  EXPECT_GT(sender_.stat("reserved"), 0);
  EXPECT_TRUE(reader_.holds("r", 6));
  reader_.drop("r");
  EXPECT_TRUE(eventually([&] {
    sender_.empty_cache();
    return sender_.stat("reserved") == 0;
  }));
}

TEST_F(SharingTest, TheImportCacheKeepsItsBounds) {
  reader_.set_option("import_cache_pieces", 2);
  for (int index = 0; index < 5; ++index) {
    const std::string name = "b" + std::to_string(index);
    sender_.allocate(name, 32 * kMiB, 1);
    reader_.receive(name, sender_.share(name));
  }
  EXPECT_EQ(reader_.stat("pieces_mapped"), 5);  // in use: never evicted
  for (int index = 0; index < 5; ++index) reader_.drop("b" + std::to_string(index));
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 2));
  for (int index = 0; index < 5; ++index) sender_.free("b" + std::to_string(index));
}

// ---- errors -------------------------------------------------------------------------------------

TEST_F(SharingTest, ARefusedOpenIsAnErrorAndNothingIsHeld) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  sender_.allocate("b", kMiB, 1);
  (void)reader_.device_name();  // its device is there
  reader_.set_faults("open_memory:1=fail");
  const std::string message = sender_.share("b");
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "device_error");
  EXPECT_EQ(reader_.stat("pieces_mapped"), 0);
  sender_.free("b");
  expect_all_back();
  sender_.allocate("b", kMiB, 2);
  reader_.receive("r", sender_.share("b"));
  EXPECT_TRUE(reader_.holds("r", 2));
  reader_.drop("r");
  sender_.free("b");
}

TEST_F(SharingTest, AnAlteredDescriptorTouchesNothing) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  for (std::size_t at = 0; at < message.size(); at += 37) {
    std::string altered = message;
    altered[at] = altered[at] == '0' ? '1' : '0';
    EXPECT_EQ(error_of([&] { reader_.receive("r", altered); }), "bad_descriptor");
  }
  EXPECT_EQ(reader_.stat("opens"), 0);
  reader_.receive("r", message);
  reader_.drop("r");
  sender_.free("b");
}

TEST_F(SharingTest, ASenderThatCannotBeReachedIsNamed) {
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  const auto moved = sandbox_.path() / "moved";
  std::filesystem::rename(sandbox_.runtime_dir(), moved);
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "no_channel");
  std::filesystem::rename(moved, sandbox_.runtime_dir());
  reader_.receive("r", message);
  reader_.drop("r");
  sender_.free("b");
}

TEST_F(SharingTest, AReaderWithAnotherRuntimeDirectoryStillFindsTheSender) {
  Peer elsewhere(with({{"LIMBO_RUNTIME_DIR", (sandbox_.path() / "elsewhere").string()}}));
  sender_.allocate("b", kMiB, 3);
  elsewhere.receive("r", sender_.share("b"));
  EXPECT_TRUE(elsewhere.holds("r", 3));
  // and the other way round: its own socket is in its own directory
  elsewhere.allocate("c", kMiB, 4);
  reader_.receive("r", elsewhere.share("c"));
  EXPECT_TRUE(reader_.holds("r", 4));
  reader_.drop("r");
  elsewhere.drop("r");
  sender_.free("b");
}

TEST_F(SharingTest, AFullRowIsAnErrorThatNamesTheOption) {
  Peer small(with({{"LIMBO_LEDGER_CLAIMS", "512"}}));
  small.allocate("b", kMiB, 1);
  for (int index = 0; index < 512; ++index) {
    reader_.receive("r" + std::to_string(index), small.share("b"));
  }
  const std::string one_more = small.share("b");
  try {
    reader_.receive("more", one_more);
    FAIL() << "512 claims are held";
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.code(), "ledger_full");
    EXPECT_NE(std::string(failure.what()).find("ledger_claims"), std::string::npos);
  }
  // It was declined: nothing is in flight for it any more.
  EXPECT_TRUE(small.becomes("in_flight", 0));
  for (int index = 0; index < 512; ++index) reader_.drop("r" + std::to_string(index));
  EXPECT_TRUE(small.becomes("held_claims", 0));
  reader_.receive("r", small.share("b"));
  reader_.drop("r");
  small.free("b");
  EXPECT_TRUE(small.becomes("limbo", 0));
}

TEST_F(SharingTest, ASmallRowServesAnyNumberOfMessages) {
  Peer small(with({{"LIMBO_LEDGER_CLAIMS", "512"}}));
  small.allocate("b", kMiB, 1);
  for (int served = 0; served < 3000; ++served) {
    // Where the machine is so busy that releases are not noted within a fraction of a second, a
    // message is refused. There is room again when they are.
    std::string refusal;
    ASSERT_TRUE(eventually([&] {
      refusal = error_of([&] { reader_.receive("r", small.share("b")); });
      if (refusal == "ledger_full") {
        EXPECT_TRUE(small.becomes("held_claims", 0));
      }
      return refusal != "ledger_full";
    }));
    ASSERT_EQ(refusal, "none") << served;
    reader_.drop("r");
  }
  small.free("b");
  EXPECT_TRUE(small.becomes("limbo", 0));
  EXPECT_TRUE(small.becomes("exports_open", 0));
}

}  // namespace
}  // namespace limbo::testing
