// The producer's operations: each takes the collect lock, does its own part, runs a pass where the
// product runs one, and leaves as the product leaves (ipc/producer_collect.cpp).
#include "ipc/protocol/forward.h"
#include "ipc/protocol/lock.h"
#include "ipc/protocol/timeline.h"
#include "tests/model/pass.h"

namespace limbo::model {
namespace {

using protocol::EndReason;
using protocol::Look;
using protocol::makes;
using protocol::Mistake;

struct ExportWords {
  std::uint32_t index = 0;
  bool has_fields = false;
  [[nodiscard]] Word word() const { return export_word(index); }
  [[nodiscard]] Word field(std::size_t i) const {
    return i == 0 && has_fields ? export_field(index) : kNowhere;
  }
};

// Blocks that nobody holds or will hold, a bit each.
std::uint8_t settled(const World& world, const Scenario& scenario) {
  for (std::size_t i = 0; i < scenario.threads.size(); ++i) {
    const Thread& thread = world.threads[i];
    if (scenario.threads[i].process == 0) continue;
    if (thread.life == Life::kRuns || thread.buffered > 0) return 0;
  }
  for (const Stream& stream : world.own.streams) {
    if (stream.size > 0) return 0;
  }
  std::uint8_t blocks = 0;
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    if (!world.own.blocks[block].owned) blocks |= bit(block);
  }
  return blocks;
}

// ---- what is under the lock, by operation ------------------------------------------------------

void reserve(const Run& run, ModelExports& exports) {
  const MessageSpec& spec = run.spec(run.step().what);
  const std::uint32_t index = exports.reserve(spec.block, spec.consumers);
  Message& message = run.own().messages[run.step().what];
  message.export_index = static_cast<std::uint8_t>(index);
  message.generation = run.own().producer.exports[index].generation;
  // Freed by another thread since it was pinned: that may have been absorbed already.
  if (!run.own().blocks[spec.block].owned) exports.let_go(spec.block);
  const std::uint32_t piece = run.piece_of(run.step().what);
  const bool crowded = exports.more_than_half_full(run.scenario.table);
  run.go(crowded ? Phase::kAbsorb : Phase::kUnlock);
  if (piece == kNoIndex) return;
  run.own().pieces[piece].refused = false;
  run.memory.store(piece_word(piece), 0, std::memory_order_release);  // not wanted back
}

void drain(const Run& run, ModelExports& exports, EndReason reason) {
  Message& message = run.own().messages[run.step().what];
  const Record& record = run.own().producer.exports[message.export_index];
  if (reason == EndReason::kExpired) {
    const bool in_time = !record.in_use || record.generation != message.generation ||
                         !record.let_go || record.in_flight == 0;
    const bool held_too = makes(Mistake::kTtlOnHeld) && record.in_use && record.let_go &&
                          record.generation == message.generation;
    if (in_time && !held_too) return run.go(Phase::kUnlock);
  }
  if (!protocol::drain_export(run.memory, export_word(message.export_index), message.generation,
                              reason)) {
    return run.go(Phase::kUnlock);
  }
  exports.clear_in_flight(message.export_index);
  message.ended_early = 1;
  run.head().note[3] = 1;
  run.go(reason == EndReason::kExpired ? Phase::kNote : Phase::kAbsorb);
}

bool is_listed(const Run& run, std::uint32_t lease) {
  return (run.memory.peek(kLeaseList) >> lease & 1U) != 0;
}

// As ipc/producer_forward.cpp: noted first; then a slot, a pin more, OPEN.
// The rules of ipc/upstream_numbers.
void say_what_is_upstream(const Run& run, Message& message, const Message& held) {
  if (makes(Mistake::kUpstreamForgotten)) return;
  message.upstream_lost = held.upstream_lost;
  const auto add = [&](std::uint32_t timeline, std::uint8_t number) {
    const bool owners = run.scenario.streams[timeline] == 0;
    if (number == 0 || owners || message.upstream_lost) return;
    const protocol::Arrival arrival =
        protocol::arrival_of(run.memory, timeline_word(timeline), end_word(timeline), number);
    if (arrival == protocol::Arrival::kCame) return;
    message.upstream_lost = arrival == protocol::Arrival::kLost;
    message.upstream[timeline] = std::max(message.upstream[timeline], number);
  };
  for (std::size_t i = 0; i < held.number.size(); ++i) add(held.timeline[i], held.number[i]);
  for (std::uint32_t timeline = 0; timeline < run.scenario.streams.size(); ++timeline) {
    add(timeline, held.upstream[timeline]);
  }
}

void forward(const Run& run, ModelExports& exports) {
  const std::uint32_t which = run.head().note[0];
  Message& message = run.own().messages[which];
  const Message& held = run.own().messages[run.spec(which).forwards];
  run.go(Phase::kUnlock);
  if (!is_listed(run, message.asker)) return;
  ModelRow row = run.row_of(message.asker);
  const auto verdict = protocol::may_forward(run.memory, row, exports, message.asked_slot,
                                             {held.export_index, held.generation});
  if (verdict != protocol::ClaimVerdict::kStands) return;
  const std::uint32_t block = run.spec(which).block;
  if (run.own().truth.reused[block]) break_rule(run.world, Rule::kForwardedWhatIsFree, block);
  const std::uint32_t index = exports.reserve(block, run.spec(which).consumers);
  ++run.own().blocks[block].pins;
  message.export_index = static_cast<std::uint8_t>(index);
  message.generation = run.own().producer.exports[index].generation;
  if (!run.own().blocks[block].owned) exports.let_go(block);
  if (run.scenario.ends_timelines) say_what_is_upstream(run, message, held);
  protocol::open_export(run.memory, ExportWords{index, run.scenario.reads_fields},
                        message.generation, {which + 1});
  run.head().note[3] = 1;
}

void take_decline(const Run& run, ModelExports& exports) {
  const Thread::Head& head = run.head();
  const Message& message = run.own().messages[head.note[0]];
  const protocol::ClaimWord word{message.generation, message.export_index,
                                 protocol::ClaimState::kHeld};
  if (run.own().processes[head.note[1] + 1U].swept ||
      !protocol::names_an_export(run.memory, exports, word)) {
    return run.go(Phase::kUnlock);
  }
  if (makes(Mistake::kDeclineCountsAgain)) {
    run.own().producer.exports[message.export_index].leases_seen = 0;
  }
  exports.claimed_by(message.export_index, head.note[1]);
  run.go(Phase::kAbsorb);
}

// Changes when a row changes.
std::uint8_t rows_sum(const World& world) {
  std::uint32_t sum = 0;
  for (Word word = kFirstLease; word < kFirstTimeline; ++word) sum = sum * 5 + world.words[word];
  return static_cast<std::uint8_t>(sum % 251);
}

void ask_for_piece(const Run& run) {
  run.memory.store(piece_word(run.step().what), kPieceWanted, std::memory_order_release);
  bool mapped = false;
  for (std::uint32_t lease = 0; lease < kLeases; ++lease) {
    if (!is_listed(run, lease)) continue;
    mapped |= run.memory.load(mark_word(lease, run.step().what), std::memory_order_acquire) != 0;
  }
  run.own().pieces[run.step().what].refused = mapped;
  run.head().note[0] = mapped ? 1 : 0;
  run.go(Phase::kUnlock);
}

// A first open after the producer's end fails, so holders must have mapped what they hold.
void look_whether_drained(const Run& run) {
  bool drained = true;
  for (const Record& record : run.own().producer.exports) {
    drained &= !record.in_use || record.in_flight == 0;
  }
  for (std::uint32_t lease = 0; lease < kLeases; ++lease) {
    if (!is_listed(run, lease) || run.own().processes[lease + 1].gone) continue;
    for (const std::uint64_t mirror : run.own().producer.rows[lease].mirrors) {
      if (mirror == 0 || makes(Mistake::kDrainEndsAtClaimed)) continue;
      const std::uint32_t index = protocol::decode_claim(mirror).export_index;
      const std::uint32_t piece = run.scenario.pieces[run.own().producer.exports[index].block];
      drained &= run.memory.load(mark_word(lease, piece), std::memory_order_acquire) == kMarkMapped;
    }
  }
  run.head().note[0] = drained ? 1 : 0;
  run.go(Phase::kUnlock);
}

void inside(const Run& run, ModelExports& exports) {
  const Step& step = run.step();
  switch (step.op) {
    case Op::kShare:
      return reserve(run, exports);
    case Op::kWithdraw:
      return drain(run, exports, EndReason::kWithdrawn);
    case Op::kExpire:
      return drain(run, exports, EndReason::kExpired);
    case Op::kAddLease: {
      const std::uint64_t list = run.lease_list();
      run.memory.store(kLeaseList, list | bit(step.what), std::memory_order_release);
      return run.go(makes(Mistake::kLeasesBeforeClosing) ? Phase::kAfter : Phase::kUnlock);
    }
    case Op::kSweep: {
      ModelRow row = run.row_of(step.what);
      protocol::sweep_row(run.memory, row, exports);
      const std::uint64_t list = run.lease_list();
      run.memory.store(kLeaseList, list & ~std::uint64_t{bit(step.what)},
                       std::memory_order_release);
      run.own().processes[step.what + 1U].swept = true;
      return run.go(Phase::kAbsorb);
    }
    case Op::kTakeDecline:
      return take_decline(run, exports);
    case Op::kTakeForward:
      return forward(run, exports);
    case Op::kTakeBack:
      return drain(run, exports, EndReason::kWithdrawn);
    case Op::kReturnPiece:
      return ask_for_piece(run);
    case Op::kExit:
      return look_whether_drained(run);
    default:
      return run.go(Phase::kAbsorb);
  }
}

// ---- beginnings and ends, by operation -----------------------------------------------------------

void begin(const Run& run) {
  const Step& step = run.step();
  World::Private& own = run.own();
  Thread::Head& head = run.head();
  switch (step.op) {
    case Op::kShare: {
      Block& block = own.blocks[run.spec(step.what).block];
      run.memory.await(true);
      if (!block.owned) return run.next();
      ++block.pins;
      return run.go(Phase::kLock);
    }
    case Op::kFree: {
      run.memory.await(true);
      Block& block = own.blocks[step.what];
      block.owned = false;
      if (block.pins == 0) {
        own.truth.reused[step.what] = true;
      } else {
        ++block.pins;  // the list's own
        block.listed = true;
      }
      return run.next();
    }
    case Op::kCollect:
      if (!protocol::try_lock_or_ask(run.memory, kLockWord)) return run.next();
      return run.go(Phase::kAbsorb);
    case Op::kLookThoroughly:
      run.memory.await(true);
      head.note[0] = settled(run.world, run.scenario);
      head.everything = true;
      return run.go(Phase::kLock);
    case Op::kAddLease:
      run.memory.await(true);
      if (makes(Mistake::kLeaseListedLate)) own.consumers[step.what].connected = true;
      return run.go(makes(Mistake::kLeasesBeforeClosing) ? Phase::kInside : Phase::kLock);
    case Op::kSweep: {
      const Process& process = own.processes[step.what + 1U];
      run.memory.await(process.quiet || (makes(Mistake::kNoLifeline) && process.gone));
      return run.go(Phase::kLock);
    }
    case Op::kTakeForward: {
      std::uint32_t which = 0;
      while (which < kMessages && !own.messages[which].asked) ++which;
      run.memory.await(which < kMessages);
      own.messages[which].asked = false;
      head.note[0] = static_cast<std::uint8_t>(which);
      return run.go(Phase::kLock);
    }
    case Op::kTakeBack: {
      // Its asker says so; or has died, and has not said that it has heard of it.
      const Message& message = own.messages[step.what];
      const bool unheard = !message.sent && own.processes[message.asker + 1U].quiet &&
                           !makes(Mistake::kUnheardAnswerKept);
      run.memory.await(message.answer == 1 && (message.given_up || unheard));
      return run.go(Phase::kLock);
    }
    case Op::kReturnPiece: {
      bool unused = !own.pieces[step.what].returned;
      for (std::uint32_t block = 0; block < run.scenario.blocks; ++block) {
        unused &= run.scenario.pieces[block] != step.what ||
                  (!own.blocks[block].owned && own.truth.reused[block]);
      }
      run.memory.await(unused);
      return run.go(Phase::kLock);
    }
    case Op::kExit:
      run.memory.await(true);
      head.note[1] = rows_sum(run.world);
      return run.go(Phase::kLock);
    case Op::kWrite:
      return write_data(run);
    case Op::kAwaitReaders:
      run.memory.await(settled(run.world, run.scenario) != 0);
      return run.next();
    case Op::kTakeDecline: {
      std::uint32_t which = kNoIndex;
      for (std::uint32_t message = 0; message < kMessages && which == kNoIndex; ++message) {
        if (own.messages[message].declined != 0) which = message;
      }
      run.memory.await(which != kNoIndex);
      Message& message = own.messages[which];
      head.note[0] = static_cast<std::uint8_t>(which);
      head.note[1] = static_cast<std::uint8_t>(lowest(message.declined));
      message.declined = static_cast<std::uint8_t>(message.declined & (message.declined - 1));
      return run.go(Phase::kLock);
    }
    default:
      run.memory.await(own.messages[step.what].sent || own.messages[step.what].answer == 1);
      return run.go(Phase::kLock);
  }
}

// The piece goes back, if nobody has it mapped.
void return_piece(const Run& run) {
  Piece& piece = run.own().pieces[run.step().what];
  if (run.head().note[0] != 0) return run.next();
  run.memory.await(true);
  piece.returned = true;
  for (const Consumer& consumer : run.own().consumers) {
    const Import& import = consumer.imports[run.step().what];
    if (import.open || import.closing > 0) {
      break_rule(run.world, Rule::kReturnedWhileMapped, run.step().what);
    }
  }
  run.next();
}

// Without the lock again.
void after(const Run& run) {
  const Step& step = run.step();
  World::Private& own = run.own();
  switch (step.op) {
    case Op::kShare: {
      const MessageSpec& spec = run.spec(step.what);
      if (spec.current_stream != kNoIndex && own.messages[step.what].number[0] == 0) {
        return advance_timelines(run);
      }
      const Message& message = own.messages[step.what];
      protocol::open_export(run.memory,
                            ExportWords{message.export_index, run.scenario.reads_fields},
                            message.generation, {std::uint64_t{step.what} + 1});
      return run.go(Phase::kAfter2);
    }
    case Op::kAddLease:
      run.memory.await_landed();
      own.consumers[step.what].connected = true;
      return run.next();
    case Op::kLookThoroughly:
      run.memory.await(run.world.words[kUnpinsPending] == 0 || makes(Mistake::kUnpinsNotAwaited));
      for (std::uint32_t block = 0; block < run.scenario.blocks; ++block) {
        if ((run.head().note[0] >> block & 1U) != 0 && !own.truth.reused[block]) {
          break_rule(run.world, Rule::kFalseOutOfMemory, block);
        }
      }
      return run.next();
    case Op::kTakeForward:
      run.memory.await_landed();
      own.messages[run.head().note[0]].answer = run.head().note[3] != 0 ? 1 : 2;
      return run.next();
    case Op::kTakeBack:
    case Op::kWithdraw:
    case Op::kExpire: {
      Message& message = own.messages[step.what];
      if (run.head().note[3] != 0) message.ended_early = 2;
      return run.next();
    }
    case Op::kReturnPiece:
      return return_piece(run);
    case Op::kExit:
      if (run.head().note[0] == 0) return run.go(Phase::kAfter3);
      run.own().processes[0].gone = true;
      return run.next();
    default:
      return run.next();
  }
}

}  // namespace

void run_producer(const Run& run) {
  if (run.step().op == Op::kEnd) return end_timeline(run);
  ModelExports exports(run.world, run.memory);
  switch (run.head().phase) {
    case Phase::kBegin:
      return begin(run);
    case Phase::kLock:
      run.memory.await(run.world.words[kLockWord] == 0);
      run.world.words[kLockWord] = protocol::kLocked;
      if (run.step().op == Op::kExpire) return run.go(Phase::kAfter4);
      return run.go(run.step().op == Op::kExit ? Phase::kAbsorb : Phase::kInside);
    case Phase::kAfter4:
      return absorb(run, exports, Phase::kInside);
    case Phase::kInside:
      return inside(run, exports);
    case Phase::kAbsorb:
      return absorb(run, exports, Phase::kNote);
    case Phase::kNote:
      return note(run, exports);
    case Phase::kChoose:
      return choose(run, exports);
    case Phase::kClose:
      return close(run, exports);
    case Phase::kUnlock:
      return unlock(run);
    case Phase::kUnpin:
      return unpin_one(run);
    case Phase::kUnpinned:
      run.memory.fetch_add(run.unpins_pending(), ~std::uint64_t{0}, std::memory_order_release);
      return run.go(run.head().note[2] != 0 ? Phase::kLookAgain : Phase::kAfter);
    case Phase::kLookAgain:
      run.head().note[2] = 0;
      if (!protocol::try_lock_or_ask(run.memory, kLockWord)) return run.go(Phase::kAfter);
      return run.go(Phase::kAbsorb);
    case Phase::kAfter:
      return after(run);
    case Phase::kAfter3:  // of an exit: it looks again when something has changed
      run.memory.await(rows_sum(run.world) != run.head().note[1]);
      return run.go(Phase::kBegin);
    case Phase::kAfter2:  // of a share: the descriptor may leave
      run.memory.await_landed();
      run.own().messages[run.step().what].sent = true;
      return run.next();
    default:
      return;
  }
}

}  // namespace limbo::model
