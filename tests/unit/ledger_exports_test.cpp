// The private records of exports by themselves: the last generations, the order of deadlines.
#include <algorithm>
#include <random>

#include "ipc/ledger_exports.h"
#include "ipc/shared_memory.h"
#include "tests/unit/allocator_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using protocol::EndReason;
using protocol::ExportState;
using std::chrono::milliseconds;

class LedgerExports : public AllocatorTest {
 protected:
  static constexpr Capacities kTables{.exports = 2, .pieces = 1, .claims = 512, .timelines = 1};

  void close(std::uint32_t index) {
    protocol::StdMemory memory;
    const std::vector<std::unique_ptr<Lease>> none;
    protocol::close_batch(
        memory, exports_, std::vector<std::uint32_t>{index}, [&]() -> const auto& { return none; });
  }
  // One message from send to end, on a block that is freed meanwhile.
  std::optional<std::uint32_t> send_and_end() {
    std::byte* data = allocate(4096);
    const BlockView block = allocator_.pin(data);
    const auto index = exports_.reserve(block, 0, 4096, 0, milliseconds(0));
    if (index) {
      exports_.open(*index, {});
      EXPECT_TRUE(exports_.drain(*index, exports_.record(*index).generation, EndReason::kExpired));
      close(*index);
      EXPECT_EQ(exports_.finish_over(exports_.take_over(), allocator_), 1U);
    } else {
      allocator_.unpin(block.block);
    }
    allocator_.free(data);
    exports_.check_invariants({});
    return index;
  }

  SharedMemory memory_ =
      SharedMemory::create("test", ledger_layout(kTables).total, ReceiverMay::kRead);
  Exports exports_{LedgerView(memory_.data(), kTables)};
};

// A slot whose generation would wrap is retired: no descriptor ever names two messages.
TEST_F(LedgerExports, SlotIsRetiredAfterItsLastGeneration) {
  exports_.start_generations_at(protocol::kMaxGeneration - 1);
  EXPECT_EQ(send_and_end(), 0U);
  EXPECT_EQ(exports_.read(0), (protocol::ExportWord{protocol::kMaxGeneration, EndReason::kExpired,
                                                    ExportState::kFree}));
  EXPECT_EQ(send_and_end(), 0U);
  EXPECT_EQ(exports_.read(0), (protocol::ExportWord{protocol::kMaxGeneration, EndReason::kExpired,
                                                    ExportState::kFree}));
  EXPECT_EQ(exports_.counts().retired, 1U);
  EXPECT_EQ(send_and_end(), 1U);
  EXPECT_EQ(send_and_end(), 1U);
  EXPECT_EQ(send_and_end(), std::nullopt);
  EXPECT_EQ(exports_.counts().retired, 2U);
}

// Only when the block is unpinned is its slot free again.
TEST_F(LedgerExports, SlotIsFreeOnlyAfterTheUnpin) {
  std::byte* data = allocate(4096);
  const BlockView block = allocator_.pin(data);
  const std::uint32_t index = *exports_.reserve(block, 0, 4096, 0, milliseconds(0));
  exports_.open(index, {});
  exports_.drain(index, 1, EndReason::kWithdrawn);
  close(index);
  const ExportLink chain = exports_.take_over();
  EXPECT_EQ(chain, index + 1);
  const std::uint32_t other = *exports_.reserve(allocator_.pin(data), 0, 1, 0, milliseconds(0));
  EXPECT_NE(other, index);
  const BlockView third = allocator_.pin(data);
  EXPECT_FALSE(exports_.reserve(third, 0, 1, 0, milliseconds(0)));
  exports_.finish_over(chain, allocator_);
  EXPECT_EQ(exports_.reserve(third, 0, 1, 0, milliseconds(0)), index);
  for (const std::uint32_t reserved : {index, other}) {
    exports_.cancel(reserved);
    allocator_.unpin(block.block);
  }
  exports_.check_invariants({});
  allocator_.free(data);
}

TEST(DeadlineHeap, GivesTheEarliestAfterAnyHistory) {
  constexpr std::size_t kCount = 200;
  SparseArray<ExportRecord> records(kCount);
  DeadlineHeap heap(records, kCount);
  std::mt19937 random(7);
  std::vector<std::pair<ProducerClock::time_point, std::uint32_t>> expected;
  for (int step = 0; step < 20'000; ++step) {
    const auto index = static_cast<std::uint32_t>(random() % kCount);
    if (records[index].heap_position == 0) {
      const ProducerClock::time_point deadline{milliseconds(random() % 500)};
      heap.push(index, deadline);
      expected.emplace_back(deadline, index);
    } else {
      heap.remove(index);
      heap.remove(index);  // does nothing
      std::erase_if(expected, [&](const auto& entry) { return entry.second == index; });
    }
    ASSERT_EQ(heap.size(), expected.size());
    ASSERT_EQ(heap.empty(), expected.empty());
    if (expected.empty()) continue;
    ASSERT_EQ(records[heap.earliest()].deadline,
              std::min_element(expected.begin(), expected.end())->first);
  }
}

TEST(ExportList, IsAQueueThatForgetsAnyMember) {
  SparseArray<ExportRecord> records(8);
  ExportList list(records, ExportListKind::kIdle);
  for (std::uint32_t i = 0; i < 6; ++i) list.push_back(i);
  list.remove(0);
  list.remove(3);
  list.remove(5);
  EXPECT_EQ(records[3].list, ExportListKind::kNone);
  EXPECT_EQ(records[4].list, ExportListKind::kIdle);
  list.push_back(3);
  EXPECT_EQ(list.size(), 4U);
  for (const std::uint32_t next : {1U, 2U, 4U, 3U}) EXPECT_EQ(list.pop_front(), next);
  EXPECT_EQ(list.size(), 0U);
}

}  // namespace
}  // namespace limbo
