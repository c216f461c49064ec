#include "tests/model/run.h"

#include <cstring>

#include "ipc/protocol/timeline.h"

namespace limbo::model {
namespace {

void finish_segment(Thread& thread) {
  std::memset(thread.log.data(), 0, thread.logged * sizeof(thread.log[0]));
  thread.made = 0;
  thread.logged = 0;
}

// Runs segments until one access has been made that others can tell. Not in a frame with anything
// that the jump could lose.
bool run_segments(const Run& run, World::Private& before, Thread::Head& head_before) {
  Thread& thread = run.thread();
  const bool produces = run.script().process == 0;
  if (setjmp(run.memory.stopped) != 0) {
    // What the segment has done privately is done when it is through.
    run.world.own = before;
    thread.head = head_before;
    return run.memory.has_acted() || run.memory.has_moved();
  }
  while (!run.memory.has_acted()) {
    if (thread.head.at == run.script().steps.size()) {
      thread.life = Life::kFinished;
      return true;
    }
    before = run.world.own;
    head_before = thread.head;
    run.memory.begin_segment();
    is_of_names(run.step().op) ? run_publisher(run)
    : produces                 ? run_producer(run)
                               : run_consumer(run);
    finish_segment(thread);
    run.memory.end_segment();
  }
  if (thread.head.at == run.script().steps.size()) thread.life = Life::kFinished;
  return true;
}

}  // namespace

bool step_thread(const Scenario& scenario, World& world, std::uint32_t thread, std::uint32_t choice,
                 std::uint32_t& ways, Observer* observer) {
  Memory memory(world, thread, scenario.threads[thread].process == 0, choice, observer);
  World::Private before;
  Thread::Head head_before;
  const bool moved = run_segments({scenario, world, thread, memory}, before, head_before);
  ways = memory.ways();
  if (moved && scenario.takes_names && !name_is_kept(world)) break_rule(world, Rule::kNameLost);
  if (memory.overflowed()) {
    break_rule(world, Rule::kEndless, thread);
    return true;
  }
  return moved;
}

void unpin(const Scenario& scenario, World& world, std::uint32_t index) {
  Block& block = world.own.blocks[index];
  if (block.pins == 0) return break_rule(world, Rule::kCountBelowZero, index);
  if (--block.pins > 0 || block.owned) return;
  world.own.truth.reused[index] = true;
  for (const auto& row : world.own.truth.stands) {
    for (const std::uint8_t stands : row) {
      if (stands != 0 && scenario.messages[stands - 1U].block == index) {
        break_rule(world, Rule::kReusedWhileHeld, index);
      }
    }
  }
}

void advance_timelines(const Run& run) {
  const MessageSpec& spec = run.spec(run.step().what);
  Message& message = run.own().messages[run.step().what];
  run.memory.await_landed();
  const auto advance = [&](std::size_t point, std::uint8_t stream) {
    const bool shared = protocol::makes(protocol::Mistake::kSharedTimeline);
    message.timeline[point] = shared ? 0 : stream;
    message.number[point] = ++run.own().taken[message.timeline[point]];
    enqueue(run.own().streams[stream], Queued::Kind::kWrite, timeline_word(message.timeline[point]),
            message.number[point]);
  };
  if (spec.forwards != kNoIndex && protocol::makes(protocol::Mistake::kForwardWithoutOwnPoints)) {
    message.timeline = run.own().messages[spec.forwards].timeline;
    message.number = run.own().messages[spec.forwards].number;
    return;
  }
  if (protocol::makes(protocol::Mistake::kHomeStreamOnly)) return advance(0, spec.home_stream);
  advance(0, spec.current_stream);
  if (spec.home_stream != spec.current_stream) advance(1, spec.home_stream);
}

void end_timeline(const Run& run) {
  const Step& step = run.step();
  if (run.head().phase == Phase::kBegin) {
    const Process& owner = run.own().processes[step.slot];
    run.memory.await(step.stream == 1 ? owner.quiet : owner.gone);
    return run.go(Phase::kAfter);
  }
  protocol::end_timeline(run.memory, timeline_word(step.what), end_word(step.what));
  run.next();
}

bool is_known_lost(const World& world, const Message& message) {
  const auto ended = [&](std::uint32_t timeline, std::uint32_t number) {
    const std::uint32_t end = world.words[end_word(timeline)];
    return number != 0 && end != 0 && end <= number;
  };
  bool lost = message.upstream_lost;
  for (std::size_t i = 0; i < message.number.size(); ++i) {
    lost |= ended(message.timeline[i], message.number[i]);
  }
  for (std::uint32_t i = 0; i < kTimelines; ++i) lost |= ended(i, message.upstream[i]);
  return lost;
}

void write_data(const Run& run) {
  const Step& step = run.step();
  std::uint32_t stream = step.stream;
  if (stream == kNoIndex) {
    stream = run.memory.choose(2);
  } else {
    run.memory.await_landed();
  }
  enqueue(run.own().streams[stream], Queued::Kind::kWrite, data_word(step.what),
          step.slot == 0 ? 1 : step.slot);
  run.next();
}

void enqueue(Stream& stream, Queued::Kind kind, Word word, std::uint64_t value) {
  stream.queue[stream.size++] = {static_cast<std::uint32_t>(value), word, kind, 0};
}

void after_landing(World& world, Word word) {
  if (word < kFirstLease || word >= kFirstTimeline) return;
  const std::uint32_t lease = (word - kFirstLease) / kLeaseWords;
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    if (word != claim_word(lease, slot)) continue;
    const protocol::ClaimWord claim = protocol::decode_claim(world.words[word]);
    std::uint8_t& stands = world.own.truth.stands[lease][slot];
    if (stands == 0 || claim.state != protocol::ClaimState::kReleased) continue;
    const Message& message = world.own.messages[stands - 1U];
    if (claim.export_index != message.export_index || claim.generation != message.generation) {
      continue;  // of an earlier claim in this slot
    }
    stands = 0;
    world.own.truth.maps[lease][slot] = false;
  }
}

World beginning(const Scenario& scenario) {
  World world{};
  for (std::uint32_t index = 0; index < kExports; ++index) {
    world.words[export_word(index)] = static_cast<std::uint32_t>(
        protocol::encode(protocol::ExportWord{1, {}, protocol::ExportState::kFree}));
  }
  world.words[kLeaseList] = scenario.connected;
  for (std::uint32_t index = 0; index < kThreads; ++index) {
    Thread& thread = world.threads[index];
    thread.head.slot.fill(kNoIndex);
    if (index >= scenario.threads.size()) thread.life = Life::kFinished;
  }
  for (std::uint32_t block = 0; block < scenario.blocks; ++block) {
    world.own.blocks[block].owned = true;
  }
  for (std::uint32_t lease = 0; lease < kLeases; ++lease) {
    Consumer& consumer = world.own.consumers[lease];
    consumer.connected = (scenario.connected >> lease & 1U) != 0;
    for (std::uint32_t group = 0; group < scenario.groups; ++group) {
      for (std::uint32_t i = 0; i < scenario.slots_per_group; ++i) {
        consumer.free[consumer.free_size++] = static_cast<std::uint8_t>(group * kSlotsPerGroup + i);
      }
    }
  }
  world.own.deaths_left = scenario.deaths;
  return world;
}

}  // namespace limbo::model
