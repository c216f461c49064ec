// The free list of small blocks against an ordered set that knows the right answer.
#include "allocator/small_free_list.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>
#include <tuple>

#include "allocator/segment.h"

namespace limbo::testing {
namespace {

constexpr std::size_t kMost = sizes::kSmallSegment / sizes::kBlockUnit;

class SmallFreeLists : public ::testing::Test {
 protected:
  using Key = std::tuple<std::uintptr_t, std::size_t, std::uint64_t, std::uintptr_t, Block*>;

  SmallFreeLists() {
    for (std::uint64_t id = 1; id <= 40; ++id) {
      Segment& segment = segments_.emplace_back();
      segment.piece.id = id;
      segment.stream = {0, reinterpret_cast<StreamHandle>(id % 3)};
      // Younger segments may lie below older ones.
      segment.base = reinterpret_cast<std::byte*>((100 - id) * sizes::kSmallSegment);
    }
    for (std::uintptr_t stream = 0; stream < 3; ++stream) {
      list_.prepare(reinterpret_cast<StreamHandle>(stream));
      list_.prepare(reinterpret_cast<StreamHandle>(stream));  // nothing happens
    }
  }

  Block& block(std::size_t segment, std::size_t unit, std::size_t units) {
    Block& made = blocks_.emplace_back();
    made.segment = &segments_[segment];
    made.base.store(made.segment->base + unit * sizes::kBlockUnit);
    made.size_bytes = units * sizes::kBlockUnit;
    return made;
  }
  static Key key(Block& block) {
    return {reinterpret_cast<std::uintptr_t>(block.segment->stream.handle), block.size_bytes,
            block.segment->piece.id, reinterpret_cast<std::uintptr_t>(block.data()), &block};
  }

  std::deque<Segment> segments_;
  std::deque<Block> blocks_;
  SmallFreeList list_;
};

TEST_F(SmallFreeLists, FindTheSameAsAnOrderedSet) {
  std::mt19937_64 random(1);
  std::set<Key> model;
  std::vector<Block*> out;
  for (int step = 0; step < 60'000; ++step) {
    // Long runs of the same size now and then: deep bins.
    const std::size_t units = step % 7000 < 3000 ? 8 : 1 + random() % kMost;
    if (out.size() < 3000 && random() % 5 < 3) {
      Block& made = block(random() % segments_.size(), random() % kMost, units);
      if (model.insert(key(made)).second) {
        list_.insert(&made);
        out.push_back(&made);
      }
    } else if (!out.empty()) {
      std::swap(out[random() % out.size()], out.back());
      Block* gone = out.back();
      out.pop_back();
      ASSERT_TRUE(list_.contains(gone));
      list_.erase(gone);
      ASSERT_FALSE(list_.contains(gone));
      model.erase(key(*gone));
    }
    const std::uintptr_t stream = random() % 4;  // 3: one that it does not know
    const std::size_t wanted = (1 + random() % kMost) * sizes::kBlockUnit;
    const auto best = model.lower_bound({stream, wanted, 0, 0, nullptr});
    Block* const expected =
        best == model.end() || std::get<0>(*best) != stream ? nullptr : std::get<4>(*best);
    ASSERT_EQ(list_.find_best(reinterpret_cast<StreamHandle>(stream), wanted), expected);
    ASSERT_EQ(list_.size(), model.size());
  }
  std::size_t largest = 0;
  for (const Key& one : model) largest = std::max(largest, std::get<1>(one));
  EXPECT_EQ(list_.largest_bytes(), largest);
  for (Block* block : out) list_.erase(block);
  EXPECT_EQ(list_.size(), 0U);
  EXPECT_EQ(list_.largest_bytes(), 0U);
}

TEST_F(SmallFreeLists, TheSmallestAndTheLargestSizeHaveBins) {
  Block& smallest = block(2, 0, 1);
  Block& largest = block(5, 0, kMost);
  list_.insert(&smallest);
  list_.insert(&largest);
  const StreamHandle stream = segments_[2].stream.handle;
  EXPECT_EQ(list_.find_best(stream, 512), &smallest);
  EXPECT_EQ(list_.find_best(stream, 1024), &largest);
  EXPECT_EQ(list_.find_best(stream, sizes::kSmallSegment), &largest);
  list_.erase(&largest);
  EXPECT_EQ(list_.find_best(stream, 1024), nullptr);
  EXPECT_EQ(list_.largest_bytes(), 512U);
}

}  // namespace
}  // namespace limbo::testing
