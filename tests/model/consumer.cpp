// A consumer's operations: receive, release, decline; and the host's side of its row
// (ipc/consumer_row.*, ipc/release_queue.*).
#include <algorithm>
#include <array>

#include "tests/model/run.h"

namespace limbo::model {
namespace {

using protocol::ClaimState;
using protocol::ClaimTarget;
using protocol::ClaimVerdict;
using protocol::makes;
using protocol::Mistake;

void store_mark(const Run& run, std::uint32_t piece) {
  const Import& import = run.own().consumers[run.lease()].imports[piece];
  const std::uint32_t mark = import.entered && import.open ? kMarkMapped : kMarkOpening;
  run.world.words[mark_word(run.lease(), piece)] = import.mappings == 0 ? 0 : mark;
}

// Ends the hold that a claim on the message had on its mapping. One that was held before its claim
// did not stand, and that nobody else has opened, goes.
void let_go_mapping(const Run& run, std::uint32_t message) {
  const std::uint32_t piece = run.piece_of(message);
  if (piece == kNoIndex) return;
  Import& import = run.own().consumers[run.lease()].imports[piece];
  if (--import.holds > 0 || import.open) return;
  import.entered = false;
  store_mark(run, piece);
}

// ---- the slots: every function here is one step, under the row's mutex -------------------------

template <class Fifo>
std::uint8_t pop(Fifo& fifo, std::uint8_t& size) {
  const std::uint8_t first = fifo[0];
  std::copy(fifo.begin() + 1, fifo.begin() + size, fifo.begin());
  fifo[--size] = 0;
  return first;
}

template <class Fifo>
void push(Fifo& fifo, std::uint8_t& size, std::uint8_t slot) {
  if (size < fifo.size()) fifo[size++] = slot;
}

ClaimState state_of(const Run& run, std::uint32_t slot) {
  return protocol::decode_claim(run.memory.peek(claim_word(run.lease(), slot))).state;
}

// The release of `slot` has landed: it waits for the producer; its mapping loses its hold.
void strike_off(const Run& run, std::uint8_t slot) {
  Consumer& consumer = run.own().consumers[run.lease()];
  consumer.jobs = static_cast<std::uint8_t>(consumer.jobs & ~bit(slot));
  push(consumer.noted, consumer.noted_size, slot);
  if (!makes(Mistake::kCloseWhileLanding)) let_go_mapping(run, consumer.job_of[slot]);
  consumer.job_of[slot] = 0;
}

void strike_off_landed(const Run& run) {
  const Consumer& consumer = run.own().consumers[run.lease()];
  for (std::uint8_t slot = 0; slot < kSlots; ++slot) {
    if ((consumer.jobs >> slot & 1U) == 0 || state_of(run, slot) == ClaimState::kHeld) continue;
    strike_off(run, slot);
  }
}

std::uint32_t take(const Run& run) {
  Consumer& consumer = run.own().consumers[run.lease()];
  if (makes(Mistake::kSlotTakenBeforeStrikeOff)) {
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      if ((consumer.jobs >> slot & 1U) != 0 && state_of(run, slot) == ClaimState::kFree)
        return slot;
    }
  }
  strike_off_landed(run);
  for (std::uint32_t left = consumer.noted_size; left > 0; --left) {
    const std::uint8_t slot = pop(consumer.noted, consumer.noted_size);
    if (state_of(run, slot) == ClaimState::kFree) {
      push(consumer.free, consumer.free_size, slot);
    } else {
      push(consumer.noted, consumer.noted_size, slot);
    }
  }
  return consumer.free_size == 0 ? kNoIndex : pop(consumer.free, consumer.free_size);
}

void released(const Run& run, std::uint8_t slot) {
  Consumer& consumer = run.own().consumers[run.lease()];
  push(consumer.noted, consumer.noted_size, slot);
}

// ---- receiving ---------------------------------------------------------------------------------

ClaimTarget target_of(const Run& run, std::uint32_t message) {
  const Message& sent = run.own().messages[message];
  return {sent.export_index, sent.generation};
}

bool holds_first(const Run& run) {
  return run.piece_of(run.step().what) != kNoIndex && !makes(Mistake::kHeldBehindClaim);
}

// Of a receive that comes to nothing.
void give_hold_back(const Run& run) {
  holds_first(run) ? run.go(Phase::kAfter3) : run.next();
}

void take_slot(const Run& run) {
  Message& message = run.own().messages[run.step().what];
  run.memory.await(true);
  const std::uint32_t slot = take(run);
  if (slot == kNoIndex) {
    message.declined |= bit(run.lease());
    message.answered |= bit(run.lease());
    return give_hold_back(run);
  }
  if (run.own().truth.stands[run.lease()][slot] != 0) {
    break_rule(run.world, Rule::kSlotTakenTwice, slot);
  }
  run.head().slot[run.step().slot] = static_cast<std::uint8_t>(slot);
  run.head().note[0] = message.ended_early;
  run.go(Phase::kInside);
}

void claim(const Run& run) {
  const std::uint32_t which = run.step().what;
  std::uint8_t& slot = run.head().slot[run.step().slot];
  const ClaimTarget target = target_of(run, which);
  const Word word = export_word(target.export_index);
  bool met_closing = false;
  std::uint32_t looks = 0;
  const auto keep_waiting = [&] {
    met_closing = true;
    if (!makes(Mistake::kClosingWithoutPatience)) return looks++ == 0;
    run.memory.await(protocol::decode_export(run.world.words[word]).state !=
                     protocol::ExportState::kClosing);
    return true;
  };
  const RowWords row{&run.scenario, run.lease()};
  const ClaimVerdict verdict = protocol::claim(run.memory, row, slot, word, target, keep_waiting);
  const bool stands = verdict == ClaimVerdict::kStands;

  Message& message = run.own().messages[which];
  const bool promised = (run.spec(which).promised & ~message.answered & bit(run.lease())) != 0;
  if (promised && message.ended_early == 0 && (!stands || met_closing)) {
    break_rule(run.world, Rule::kPromiseBroken, which);
  }
  if (stands && run.head().note[0] == 2) {
    break_rule(run.world, Rule::kClaimedAfterWithdrawal, which);
  }
  message.answered |= bit(run.lease());
  if (!stands) {
    released(run, slot);
    slot = kNoIndex;
    return give_hold_back(run);
  }
  const std::uint32_t block = run.spec(which).block;
  run.own().truth.stands[run.lease()][slot] = static_cast<std::uint8_t>(which + 1);
  if (run.own().truth.reused[block]) break_rule(run.world, Rule::kReusedWhileHeld, block);
  if (run.scenario.reads_fields) return run.go(Phase::kAfter2);
  if (run.piece_of(which) != kNoIndex) return run.go(Phase::kMark);
  run.step().stream == kNoIndex ? run.next() : run.go(Phase::kWork);
}

// Behind the claim that stands: the fields are there.
void read_fields(const Run& run) {
  const std::uint32_t which = run.step().what;
  const Word field = export_field(target_of(run, which).export_index);
  if (run.memory.load(field, std::memory_order_relaxed) != which + 1) {
    break_rule(run.world, Rule::kReadTooEarly, which);
  }
  run.next();
}

// ---- releasing -----------------------------------------------------------------------------------

void release_by_host(const Run& run) {
  std::uint8_t& slot = run.head().slot[run.step().slot];
  if (run.head().phase == Phase::kAfter) {
    run.memory.await_landed();  // the table's mutex
    let_go_mapping(run, run.step().what);
    slot = kNoIndex;
    return run.next();
  }
  const RowWords row{&run.scenario, run.lease()};
  protocol::release_by_host(run.memory, row, slot, target_of(run, run.step().what));
  released(run, slot);
  if (run.piece_of(run.step().what) != kNoIndex) return run.go(Phase::kAfter);
  slot = kNoIndex;
  run.next();
}

void release_by_gpu(const Run& run, std::uint32_t count) {
  run.memory.await_landed();  // a call of the driver
  Consumer& consumer = run.own().consumers[run.lease()];
  Stream& stream = run.own().streams[run.step().stream];
  const RowWords row{&run.scenario, run.lease()};
  std::array<protocol::Release, 2> releases{};
  for (std::uint32_t i = 0; i < count; ++i) {
    releases[i] = {run.head().slot[run.step().slot + i], target_of(run, run.step().what + i)};
  }
  protocol::write_release_batch(
      row, std::span(releases.data(), count), 255, [&] { return std::uint64_t{++consumer.number}; },
      [&](Word word, std::uint64_t value) { enqueue(stream, Queued::Kind::kWrite, word, value); });
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint8_t& slot = run.head().slot[run.step().slot + i];
    consumer.jobs |= bit(slot);
    consumer.job_of[slot] = static_cast<std::uint8_t>(run.step().what + i);
    if (makes(Mistake::kCloseWhileLanding)) let_go_mapping(run, run.step().what + i);
    slot = kNoIndex;
  }
  run.next();
}

// Asks the owner, keeps the claim until the answer, and sends the new message on.
void forward(const Run& run) {
  const std::uint32_t which = run.step().what;
  Message& message = run.own().messages[which];
  switch (run.head().phase) {
    case Phase::kBegin:
      if (run.spec(which).current_stream != kNoIndex) advance_timelines(run);
      return run.go(Phase::kInside);
    case Phase::kInside:
      run.memory.await_landed();
      message.asked = true;
      message.asker = static_cast<std::uint8_t>(run.lease());
      message.asked_slot = run.head().slot[run.step().slot];
      return run.go(Phase::kAfter);
    case Phase::kAfter:  // the answer comes in time, or not
      if (run.memory.choose(2) == 0) return run.go(Phase::kAfter2);
      message.given_up = true;
      return run.next();
    default:
      run.memory.await(message.answer != 0);
      message.sent = message.answer == 1;
      return run.next();
  }
}

// The device reports that its context is lost: what was enqueued may be written or not, at any time.
// So the host releases what has not landed, and such a slot is never used again.
void lose_context(const Run& run) {
  Consumer& consumer = run.own().consumers[run.lease()];
  run.memory.await(consumer.jobs != 0 && run.thread().buffered == 0);
  std::uint8_t slot = 0;
  while ((consumer.jobs >> slot & 1U) == 0) ++slot;
  run.head().note[1] = slot;
  run.head().note[2] = consumer.job_of[slot];
  run.head().note[3] = state_of(run, slot) == ClaimState::kHeld ? 1 : 0;
  consumer.jobs = static_cast<std::uint8_t>(consumer.jobs & ~bit(slot));
  run.go(Phase::kInside);
}

void release_lost(const Run& run) {
  const std::uint8_t slot = run.head().note[1];
  const RowWords row{&run.scenario, run.lease()};
  if (run.head().note[3] != 0) {
    protocol::release_by_host(run.memory, row, slot, target_of(run, run.head().note[2]));
  }
  if (run.head().note[3] == 0 || makes(Mistake::kLostSlotReused)) released(run, slot);
  run.next();
}

// ---- mappings: each of these is one step under the table's mutex, or one call of the driver ------

void hold(const Run& run) {
  const std::uint32_t piece = run.piece_of(run.step().what);
  Import& import = run.own().consumers[run.lease()].imports[piece];
  ++import.holds;
  if (import.entered) return;
  import.entered = true;
  store_mark(run, piece);
}

void mark(const Run& run) {
  const std::uint32_t piece = run.piece_of(run.step().what);
  Import& import = run.own().consumers[run.lease()].imports[piece];
  run.memory.await_landed();
  if (makes(Mistake::kHeldBehindClaim)) hold(run);
  if (!import.begun) {
    import.begun = true;
    ++import.mappings;
    store_mark(run, piece);
  }
  run.own().truth.maps[run.lease()][run.head().slot[run.step().slot]] = true;
  run.go(Phase::kOpen);
}

void open(const Run& run) {
  const std::uint32_t piece = run.piece_of(run.step().what);
  Import& import = run.own().consumers[run.lease()].imports[piece];
  run.memory.await(true);
  if (!import.open) {
    const bool possible = !run.own().pieces[piece].returned && !run.own().processes[0].gone;
    if (!possible) break_rule(run.world, Rule::kOpenRefused, piece);
    import.open = true;
    store_mark(run, piece);
  }
  run.step().stream == kNoIndex ? run.next() : run.go(Phase::kWork);
}

// Whether an idle mapping is to be closed.
bool closes(const Run& run, std::uint32_t piece) {
  if (run.step().slot == 1) return true;
  if (run.step().slot == 2) return run.own().processes[0].gone;
  return (run.world.words[piece_word(piece)] & kPieceWanted) != 0;
}

// Takes the mapping out of the table, closes it, and clears the mark when no other one is left.
void unmap(const Run& run) {
  const std::uint32_t piece = run.step().what;
  Import& import = run.own().consumers[run.lease()].imports[piece];
  const Truth& truth = run.own().truth;
  switch (run.head().phase) {
    case Phase::kBegin:
      strike_off_landed(run);
      run.memory.await(import.entered && import.open && import.holds == 0 && closes(run, piece));
      return run.go(Phase::kInside);
    case Phase::kInside:
      run.memory.await(true);
      if (import.holds > 0 || !import.entered) return run.next();
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        const std::uint32_t stands = truth.stands[run.lease()][slot];
        if (!truth.maps[run.lease()][slot] || stands == 0) continue;
        if (run.piece_of(stands - 1) == piece) break_rule(run.world, Rule::kClosedUnderUse, piece);
      }
      import.entered = import.begun = import.open = false;
      ++import.closing;
      store_mark(run, piece);
      return run.go(Phase::kAfter);
    case Phase::kAfter:  // the driver closes it
      run.memory.await(true);
      --import.closing;
      return run.go(Phase::kAfter2);
    default:
      run.memory.await(true);
      --import.mappings;
      store_mark(run, piece);
      if (makes(Mistake::kMarkClearedLate)) run.world.words[mark_word(run.lease(), piece)] = 0;
      return run.next();
  }
}

// The receiving stream waits for what the descriptor names, and reads the block.
void work(const Run& run) {
  run.memory.await_landed();
  const std::uint32_t which = run.step().what;
  const Message& message = run.own().messages[which];
  Stream& stream = run.own().streams[run.step().stream];
  for (std::size_t i = 0; i < message.number.size(); ++i) {
    if (message.number[i] == 0) continue;
    enqueue(stream, Queued::Kind::kWait, timeline_word(message.timeline[i]), message.number[i]);
  }
  enqueue(stream, Queued::Kind::kRead, data_word(run.spec(which).block), run.spec(which).data);
  stream.queue[stream.size - 1].about = static_cast<std::uint16_t>(which);
  run.next();
}

void receive(const Run& run) {
  switch (run.head().phase) {
    case Phase::kBegin:
      run.memory.await(run.own().messages[run.step().what].sent &&
                       run.own().consumers[run.lease()].connected);
      return run.go(holds_first(run) ? Phase::kHold : Phase::kAfter);
    case Phase::kHold:
      run.memory.await_landed();  // the table's mutex
      hold(run);
      return run.go(Phase::kAfter);
    case Phase::kAfter:
      return take_slot(run);
    case Phase::kAfter3:
      run.memory.await_landed();
      let_go_mapping(run, run.step().what);
      return run.next();
    case Phase::kInside:
      return claim(run);
    case Phase::kAfter2:
      return read_fields(run);
    case Phase::kMark:
      return mark(run);
    case Phase::kOpen:
      return open(run);
    default:
      return work(run);
  }
}

}  // namespace

void run_consumer(const Run& run) {
  const Step& step = run.step();
  World::Private& own = run.own();
  const bool holds = run.head().slot[step.slot] != kNoIndex;
  switch (step.op) {
    case Op::kReceive:
      return receive(run);
    case Op::kReleaseHost:
      return holds ? release_by_host(run) : run.next();
    case Op::kReleaseGpu:
      return holds ? release_by_gpu(run, 1) : run.next();
    case Op::kReleaseBoth:
      return release_by_gpu(run, 2);
    case Op::kPoll:
      run.memory.await(true);
      strike_off_landed(run);
      return run.next();
    case Op::kDecline: {
      run.memory.await(own.messages[step.what].sent && own.consumers[run.lease()].connected &&
                       run.thread().buffered == 0);
      own.messages[step.what].declined |= bit(run.lease());
      own.messages[step.what].answered |= bit(run.lease());
      return run.next();
    }
    case Op::kForward:
      return holds ? forward(run) : run.next();
    case Op::kWrite:
      return write_data(run);
    case Op::kLoseContext:
      return run.head().phase == Phase::kInside ? release_lost(run) : lose_context(run);
    case Op::kUnmap:
      return unmap(run);
    case Op::kEnd:
      return end_timeline(run);
    default:
      return run.next();
  }
}

}  // namespace limbo::model
