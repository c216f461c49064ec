#include "allocator/page_table.h"

#include <gtest/gtest.h>

#include "allocator/sizes.h"

namespace limbo {
namespace {

using sizes::kMiB;

void* at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

struct Placed {
  Block block;
  Placed(std::uintptr_t address, std::size_t size_bytes) {
    block.base.store(static_cast<std::byte*>(at(address)));
    block.size_bytes = size_bytes;
  }
};

constexpr std::uintptr_t kBase = 0x7f00'0000'0000;

TEST(PageTable, FindsSmallBlocksByStartAndByInterior) {
  PageTable table;
  table.add_segment(at(kBase), 2 * kMiB, false, 3);
  Placed first(kBase, 1024);
  Placed rest(kBase + 1024, 2 * kMiB - 1024);
  table.set(first.block.data(), &first.block);
  table.set(rest.block.data(), &rest.block);
  EXPECT_EQ(table.starting_at(at(kBase)), &first.block);
  EXPECT_EQ(table.starting_at(at(kBase + 1024)), &rest.block);
  EXPECT_EQ(table.starting_at(at(kBase + 512)), nullptr);
  EXPECT_EQ(table.starting_at(at(kBase + 1)), nullptr);
  EXPECT_EQ(table.holding(at(kBase + 1023)), &first.block);
  EXPECT_EQ(table.holding(at(kBase + 1024)), &rest.block);
  EXPECT_EQ(table.holding(at(kBase + 2 * kMiB - 1)), &rest.block);
  EXPECT_EQ(table.holding(at(kBase + 2 * kMiB)), nullptr);
  EXPECT_EQ(table.holding(at(kBase - 1)), nullptr);
  EXPECT_EQ(table.device_of(at(kBase + 7)), 3);
  EXPECT_EQ(table.device_of(at(kBase - 1)), -1);
}

TEST(PageTable, FindsLargeBlocksAcrossChunks) {
  PageTable table;
  table.add_segment(at(kBase), 20 * kMiB, true, 0);
  const std::size_t step = kMiB + 512;  // two blocks start in some chunks
  Placed first(kBase, step);
  Placed second(kBase + step, step);
  Placed third(kBase + 2 * step, 20 * kMiB - 2 * step);
  for (Placed* placed : {&first, &second, &third}) table.set(placed->block.data(), &placed->block);
  for (const Placed* placed : {&first, &second, &third}) {
    EXPECT_EQ(table.starting_at(placed->block.data()), &placed->block);
    EXPECT_EQ(table.holding(placed->block.data() + 1), &placed->block);
    EXPECT_EQ(table.holding(placed->block.end() - 1), &placed->block);
    EXPECT_EQ(table.starting_at(placed->block.data() + 1), nullptr);
  }
}

TEST(PageTable, TakesAnyAddress) {
  const PageTable table;
  for (const std::uintptr_t address :
       {std::uintptr_t{0}, std::uintptr_t{1}, kBase, (std::uintptr_t{1} << 47) - 1,
        std::uintptr_t{1} << 47, ~std::uintptr_t{0}}) {
    EXPECT_EQ(table.starting_at(at(address)), nullptr);
    EXPECT_EQ(table.holding(at(address)), nullptr);
    EXPECT_EQ(table.device_of(at(address)), -1);
  }
}

TEST(PageTable, ForgetsWhatIsRemovedAndReusesItsChunks) {
  PageTable table;
  Placed block(kBase, 2 * kMiB);
  for (const bool large : {false, true, false}) {
    table.add_segment(at(kBase), 2 * kMiB, large, 0);
    EXPECT_EQ(table.starting_at(at(kBase)), nullptr);  // no slot of an earlier life
    table.set(at(kBase), &block.block);
    EXPECT_EQ(table.starting_at(at(kBase)), &block.block);
    table.remove_segment(at(kBase), 2 * kMiB);
    EXPECT_EQ(table.starting_at(at(kBase)), nullptr);
    EXPECT_EQ(table.device_of(at(kBase)), -1);
  }
}

TEST(PageTable, SaysWhatItCanHold) {
  EXPECT_TRUE(PageTable::can_hold(at(kBase), 2 * kMiB));
  EXPECT_FALSE(PageTable::can_hold(at(kBase + 512), 2 * kMiB));
  EXPECT_FALSE(PageTable::can_hold(at(kBase), 2 * kMiB + 512));
  EXPECT_TRUE(PageTable::can_hold(at((std::uintptr_t{1} << 47) - 2 * kMiB), 2 * kMiB));
  EXPECT_FALSE(PageTable::can_hold(at((std::uintptr_t{1} << 47) - 2 * kMiB), 4 * kMiB));
  EXPECT_FALSE(PageTable::can_hold(at(std::uintptr_t{1} << 47), 2 * kMiB));
}

}  // namespace
}  // namespace limbo
