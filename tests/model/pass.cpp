// A pass, and how the product leaves it (ipc/producer_collect.cpp).
#include "tests/model/pass.h"

#include <span>
#include <utility>

#include "ipc/protocol/lock.h"

namespace limbo::model {
namespace {

using protocol::Look;

// A list of rows like the product's, of the leases that are in it when it is read.
struct RowList {
  std::array<ModelRow, kLeases> rows;
  std::array<ModelRow*, kLeases> pointers;
  std::uint32_t size = 0;
  [[nodiscard]] ModelRow* const* begin() const { return pointers.data(); }
  [[nodiscard]] ModelRow* const* end() const { return pointers.data() + size; }
};

}  // namespace

void absorb(const Run& run, ModelExports& exports, Phase then) {
  Producer& producer = run.own().producer;
  if (producer.let_go_chain != 0) {
    producer.let_go_again = true;
    return run.go(then);
  }
  run.memory.await(true);  // taking the allocator's list
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    if (!run.own().blocks[block].listed) continue;
    run.own().blocks[block].listed = false;
    producer.let_go_chain |= bit(block);
    exports.let_go(block);
  }
  run.go(then);
}

void note(const Run& run, ModelExports& exports) {
  Thread::Head& head = run.head();
  while (head.row < kLeases && (run.memory.peek(kLeaseList) >> head.row & 1U) == 0) ++head.row;
  if (head.row == kLeases) {
    head.row = 0;
    head.left = static_cast<std::uint8_t>(exports.candidates());
    return run.go(Phase::kChoose);
  }
  ModelRow row = run.row_of(head.row);
  protocol::note_row(run.memory, row, exports, std::memory_order_acquire,
                     head.everything ? Look::kEverything : Look::kChanged);
  ++head.row;
}

void choose(const Run& run, ModelExports& exports) {
  run.head().batch = exports.collect_batch(run.head().left, run.scenario.table);
  if (run.head().batch != 0) return run.go(Phase::kClose);
  run.go(run.step().op == Op::kExit ? Phase::kInside : Phase::kUnlock);
}

void close(const Run& run, ModelExports& exports) {
  std::array<std::uint32_t, kExports> batch{};
  std::uint32_t count = 0;
  for (std::uint32_t index = 0; index < kExports; ++index) {
    if ((run.head().batch >> index & 1U) != 0) batch[count++] = index;
  }
  RowList list;
  protocol::close_batch(run.memory, exports, std::span(batch.data(), count),
                        [&]() -> const RowList& {
                          const auto bits = run.lease_list();
                          list.size = 0;
                          for (std::uint32_t lease = 0; lease < kLeases; ++lease) {
                            if ((bits >> lease & 1U) == 0) continue;
                            list.rows[list.size] = run.row_of(lease);
                            list.pointers[list.size] = &list.rows[list.size];
                            ++list.size;
                          }
                          return list;
                        });
  run.go(Phase::kChoose);
}

// ---- leaving -----------------------------------------------------------------------------------

void unlock(const Run& run) {
  Producer& producer = run.own().producer;
  Thread::Head& head = run.head();
  const bool keeps_unpins = run.step().op == Op::kAddLease || run.step().op == Op::kTakeForward;
  const std::uint8_t over = keeps_unpins ? 0 : std::exchange(producer.over, 0);
  const std::uint8_t let_go = keeps_unpins ? 0 : std::exchange(producer.let_go_chain, 0);
  const bool look_again = !keeps_unpins && std::exchange(producer.let_go_again, false);
  const bool any = over != 0 || let_go != 0;
  if (any) run.memory.fetch_add(run.unpins_pending(), 1, std::memory_order_relaxed);
  if (protocol::unlock_or_again(run.memory, kLockWord)) {
    head.over = over;
    head.let_go = let_go;
    head.note[2] = look_again ? 1 : 0;
    head.everything = false;
    return run.go(any ? Phase::kUnpin : Phase::kAfter);
  }
  if (any) run.memory.fetch_add(run.unpins_pending(), ~std::uint64_t{0}, std::memory_order_relaxed);
  producer.over |= over;
  producer.let_go_chain |= let_go;
  producer.let_go_again |= look_again;
  head.everything = false;
  run.go(Phase::kAbsorb);
}

void unpin_one(const Run& run) {
  Thread::Head& head = run.head();
  run.memory.await(true);
  if (head.over != 0) {
    Record& record = run.own().producer.exports[lowest(head.over)];
    head.over = static_cast<std::uint8_t>(head.over & (head.over - 1));
    unpin(run.scenario, run.world, record.block);
    record.to_unpin = false;
  } else {
    const std::uint32_t block = lowest(head.let_go);
    head.let_go = static_cast<std::uint8_t>(head.let_go & (head.let_go - 1));
    unpin(run.scenario, run.world, block);
  }
  if (head.over == 0 && head.let_go == 0) run.go(Phase::kUnpinned);
}

}  // namespace limbo::model
