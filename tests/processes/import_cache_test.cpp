// The mappings that a reader keeps: their bounds, and what their owner wants back.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

// Pieces of 32 MiB: large blocks have segments of their own.
class ImportCacheTest : public SharingTest {
 protected:
  static constexpr std::size_t kPiece = 32 * kMiB;

  void open(const std::string& name) {
    sender_.allocate(name, kPiece, 1);
    reader_.receive(name, sender_.share(name));
  }
  void TearDown() override {
    for (const char* name : {"a", "b", "c"}) {
      if (opened_.find(name) != std::string::npos) sender_.free(name);
    }
    SharingTest::TearDown();
  }
  void open_all() {
    for (const char* name : {"a", "b", "c"}) open(name);
    opened_ = "abc";
  }
  std::string opened_;
};

TEST_F(ImportCacheTest, ABoundOfNoneClosesWhatIsIdleAndNothingElse) {
  reader_.set_option("import_cache_pieces", 0);
  open_all();
  EXPECT_EQ(reader_.stat("pieces_mapped"), 3);  // in use, beyond the bound
  reader_.drop("b");
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 2));
  EXPECT_TRUE(reader_.holds("a", 1));
  EXPECT_TRUE(reader_.holds("c", 1));
  reader_.drop("a");
  reader_.drop("c");
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
  EXPECT_EQ(reader_.stat("closes"), 3);
}

TEST_F(ImportCacheTest, TheLeastRecentlyUsedGoesFirst) {
  reader_.set_option("import_cache_pieces", 2);
  open_all();
  for (const char* name : {"a", "b", "c"}) reader_.drop(name);
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 2));
  const auto opens = reader_.stat("opens");
  for (const char* name : {"b", "c"}) {
    reader_.receive(name, sender_.share(name));
    reader_.drop(name);
  }
  EXPECT_EQ(reader_.stat("opens"), opens);  // they were there
  reader_.receive("a", sender_.share("a"));
  EXPECT_EQ(reader_.stat("opens"), opens + 1);
  reader_.drop("a");
}

TEST_F(ImportCacheTest, APieceLargerThanTheBoundIsUsedAndClosed) {
  reader_.set_option("import_cache_bytes", static_cast<std::int64_t>(kPiece) - 1);
  open_all();
  EXPECT_TRUE(reader_.holds("a", 1));
  for (const char* name : {"a", "b", "c"}) reader_.drop(name);
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
}

TEST_F(ImportCacheTest, TheBoundInBytesKeepsWhatFits) {
  reader_.set_option("import_cache_bytes", static_cast<std::int64_t>(2 * kPiece));
  open_all();
  for (const char* name : {"a", "b", "c"}) reader_.drop(name);
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 2));
}

// The cache's own bounds are far away: an idle mapping goes because its owner wants the memory.
TEST_F(ImportCacheTest, WhatItsOwnerWantsBackComesBackByItself) {
  sender_.allocate("b", kPiece, 1);
  reader_.receive("b", sender_.share("b"));
  reader_.drop("b");
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  EXPECT_EQ(reader_.stat("pieces_mapped"), 1);
  sender_.empty_cache();  // asks for it
  EXPECT_TRUE(reader_.becomes("pieces_mapped", 0));
  sender_.empty_cache();
  EXPECT_EQ(sender_.stat("reserved"), 0);
}

// A piece that is wanted and used again is not wanted any more.
TEST_F(ImportCacheTest, SharingAgainTakesTheWishBack) {
  sender_.allocate("b", kPiece, 1);
  reader_.receive("b", sender_.share("b"));
  sender_.free("b");
  sender_.empty_cache();  // in use: nothing is asked for
  reader_.drop("b");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  sender_.allocate("b", kPiece, 2);  // the same piece
  reader_.receive("b", sender_.share("b"));
  EXPECT_TRUE(reader_.holds("b", 2));
  EXPECT_EQ(reader_.stat("opens"), 1);
  reader_.drop("b");
  sender_.free("b");
}

// A close takes as long as the device is busy. Whoever needs the piece meanwhile opens it anew.
TEST_F(ImportCacheTest, AnOpenerDoesNotWaitForAClosing) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  reader_.set_option("import_cache_pieces", 0);
  sender_.allocate("b", kPiece, 1);
  reader_.receive("old", sender_.share("b"));
  reader_.set_faults("close_memory:1=slow:1500");
  reader_.drop("old");
  EXPECT_TRUE(eventually([&] { return reader_.calls("close_memory") == 1; }));
  reader_.receive("new", sender_.share("b"));
  EXPECT_EQ(reader_.stat("closes"), 0);
  EXPECT_EQ(reader_.stat("opens"), 2);
  EXPECT_TRUE(reader_.holds("new", 1));
  EXPECT_TRUE(reader_.becomes("closes", 1));
  EXPECT_TRUE(reader_.holds("new", 1));
  reader_.drop("new");
  EXPECT_TRUE(reader_.becomes("closes", 2));
  sender_.free("b");
}

// The mapping stays, and its mark: the owner keeps the memory until the reader ends.
TEST_F(ImportCacheTest, AMappingThatCannotBeClosedStaysMarked) {
  LIMBO_NEEDS_SIMULATED_DEVICE();
  Peer reader;
  reader.set_option("import_cache_pieces", 0);
  sender_.allocate("b", kPiece, 1);
  reader.receive("r", sender_.share("b"));
  reader.set_faults("close_memory:1=fail");
  reader.drop("r");
  EXPECT_TRUE(eventually([&] { return reader.calls("close_memory") == 1; }));
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("limbo", 0));
  EXPECT_EQ(sender_.mapped_by_others(), 1U);
  sender_.empty_cache();
  EXPECT_GT(sender_.stat("reserved"), 0);
  reader.process().kill();
  EXPECT_TRUE(eventually([&] {
    sender_.empty_cache();
    return sender_.stat("reserved") == 0;
  }));
}

}  // namespace
}  // namespace limbo::testing
