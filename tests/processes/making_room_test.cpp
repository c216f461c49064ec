// What a process that lends does when it needs memory.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

class MakingRoomTest : public SharingTest {};

TEST_F(MakingRoomTest, AMissCollectsOnce) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  reader_.release("r");
  sender_.free("b");
  expect_all_back();
  EXPECT_TRUE(sender_.becomes("exports_open", 0));
  sender_.set_fail_points("collect.after_note=delay:0");  // counts the passes
  sender_.allocate("hit", kMiB, 1);
  EXPECT_EQ(sender_.passed("collect.after_note"), 0U);  // and nobody else collects now
  sender_.allocate("miss", 40 * kMiB, 1);
  EXPECT_EQ(sender_.passed("collect.after_note"), 1U);
}

TEST_F(MakingRoomTest, AMissFindsWhatAReaderHasGivenBack) {
  sender_.allocate("b", 40 * kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  sender_.free("b");
  const std::int64_t reserved = sender_.stat("reserved");
  reader_.release("r");
  reader_.synchronize();
  sender_.allocate("again", 40 * kMiB, 2);
  EXPECT_EQ(sender_.stat("reserved"), reserved);
}

}  // namespace
}  // namespace limbo::testing
