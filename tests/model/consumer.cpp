// A consumer's operations: receive, release, decline; and the host's side of its row
// (ipc/consumer_row.*, ipc/release_queue.*).
#include <algorithm>

#include "tests/model/run.h"

namespace limbo::model {
namespace {

using protocol::ClaimState;
using protocol::ClaimTarget;
using protocol::ClaimVerdict;
using protocol::makes;
using protocol::Mistake;

constexpr std::uint8_t bit(std::uint32_t index) {
  return static_cast<std::uint8_t>(1U << index);
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

// What has landed waits for the producer.
void strike_off_landed(const Run& run) {
  Consumer& consumer = run.own().consumers[run.lease()];
  for (std::uint8_t slot = 0; slot < kSlots; ++slot) {
    if ((consumer.jobs >> slot & 1U) == 0 || state_of(run, slot) == ClaimState::kHeld) continue;
    consumer.jobs = static_cast<std::uint8_t>(consumer.jobs & ~bit(slot));
    push(consumer.noted, consumer.noted_size, slot);
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

void take_slot(const Run& run) {
  Message& message = run.own().messages[run.step().what];
  run.memory.await(true);
  const std::uint32_t slot = take(run);
  if (slot == kNoIndex) {
    message.declined |= bit(run.lease());
    message.answered |= bit(run.lease());
    return run.next();
  }
  if (run.own().truth.stands[run.lease()][slot] != 0) {
    break_rule(run.world, Rule::kSlotTakenTwice, slot);
  }
  run.head().slot[run.step().slot] = static_cast<std::uint8_t>(slot);
  run.head().note[0] = message.ended_early ? 1 : 0;
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
  if (promised && !message.ended_early && (!stands || met_closing)) {
    break_rule(run.world, Rule::kPromiseBroken, which);
  }
  if (stands && run.head().note[0] != 0) {
    break_rule(run.world, Rule::kClaimedAfterWithdrawal, which);
  }
  message.answered |= bit(run.lease());
  if (stands) {
    const std::uint32_t block = run.spec(which).block;
    run.own().truth.stands[run.lease()][slot] = static_cast<std::uint8_t>(block + 1);
    if (run.own().truth.reused[block]) break_rule(run.world, Rule::kReusedWhileHeld, block);
  } else {
    released(run, slot);
    slot = kNoIndex;
  }
  run.next();
}

// ---- releasing -----------------------------------------------------------------------------------

void release_by_host(const Run& run) {
  std::uint8_t& slot = run.head().slot[run.step().slot];
  const RowWords row{&run.scenario, run.lease()};
  protocol::release_by_host(run.memory, row, slot, target_of(run, run.step().what));
  released(run, slot);
  slot = kNoIndex;
  run.next();
}

void release_by_gpu(const Run& run) {
  std::uint8_t& slot = run.head().slot[run.step().slot];
  run.memory.await_landed();  // a call of the driver
  Consumer& consumer = run.own().consumers[run.lease()];
  Stream& stream = run.own().streams[run.step().stream];
  const RowWords row{&run.scenario, run.lease()};
  const protocol::Release release{slot, target_of(run, run.step().what)};
  protocol::write_release_batch(
      row, std::span(&release, 1), 255, [&] { return std::uint64_t{++consumer.number}; },
      [&](Word word, std::uint64_t value) {
        stream.queue[stream.size++] = {static_cast<std::uint32_t>(value), word,
                                       Queued::Kind::kWrite, 0};
      });
  consumer.jobs |= bit(slot);
  slot = kNoIndex;
  run.next();
}

}  // namespace

void run_consumer(const Run& run) {
  const Step& step = run.step();
  World::Private& own = run.own();
  const bool holds = run.head().slot[step.slot] != kNoIndex;
  switch (step.op) {
    case Op::kReceive:
      if (run.head().phase == Phase::kInside) return claim(run);
      if (run.head().phase == Phase::kAfter) return take_slot(run);
      run.memory.await(own.messages[step.what].sent && own.consumers[run.lease()].connected);
      return run.go(Phase::kAfter);
    case Op::kReleaseHost:
      return holds ? release_by_host(run) : run.next();
    case Op::kReleaseGpu:
      return holds ? release_by_gpu(run) : run.next();
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
    default:
      return run.next();
  }
}

}  // namespace limbo::model
