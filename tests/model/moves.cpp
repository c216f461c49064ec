#include "tests/model/moves.h"

#include <algorithm>

namespace limbo::model {
namespace {

void land(World& world, Thread& thread, std::uint32_t which, Observer* observer) {
  const Pending pending = thread.pending[which];
  std::copy(thread.pending.begin() + which + 1, thread.pending.begin() + thread.buffered,
            thread.pending.begin() + which);
  thread.pending[--thread.buffered] = {};
  std::uint32_t& word = world.words[pending.word];
  word = pending.add ? word + pending.value : pending.value;
  if (observer != nullptr) observer->access("landed", pending.word, word);
  after_landing(world, pending.word);
}

bool stream_may_move(const Stream& stream, const World& world) {
  if (stream.size == 0) return false;
  const Queued& first = stream.queue[0];
  return first.kind != Queued::Kind::kWait || world.words[first.word] >= first.value;
}

void move_stream(World& world, Stream& stream, Observer* observer) {
  const Queued first = stream.queue[0];
  std::copy(stream.queue.begin() + 1, stream.queue.begin() + stream.size, stream.queue.begin());
  stream.queue[--stream.size] = {};
  if (observer != nullptr) observer->access("stream", first.word, first.value);
  if (first.kind == Queued::Kind::kWrite) {
    world.words[first.word] = first.value;
    after_landing(world, first.word);
  } else if (first.kind == Queued::Kind::kRead && world.words[first.word] != first.value &&
             !is_known_lost(world, world.own.messages[first.about])) {
    break_rule(world, Rule::kReadTooEarly, first.about);
  }
}

void die(const Scenario& scenario, World& world, std::uint32_t process) {
  world.own.processes[process].gone = true;
  --world.own.deaths_left;
  let_go_names_lock(world, process);
  for (std::size_t i = 0; i < scenario.threads.size(); ++i) {
    if (scenario.threads[i].process != process) continue;
    // Stores that have not landed never come: those that had been made are among the other paths.
    world.threads[i] = {};
    world.threads[i].life = Life::kDead;
  }
}

void become_quiet(const Scenario& scenario, World& world, std::uint32_t process) {
  world.own.processes[process].quiet = true;
  if (process > 0) {
    world.own.truth.stands[process - 1] = {};
    world.own.truth.maps[process - 1] = {};
    world.own.consumers[process - 1].imports = {};
  }
  for (std::size_t i = 0; i < scenario.streams.size(); ++i) {
    if (scenario.streams[i] == process) world.own.streams[i] = {};
  }
}

}  // namespace

void list_moves(const Scenario& scenario, const World& world, Moves& moves) {
  for (std::uint32_t i = 0; i < scenario.threads.size(); ++i) {
    const Thread& thread = world.threads[i];
    for (std::uint32_t which = 0; which < thread.buffered; ++which) {
      if (may_land(thread, which)) moves.add(Move::Kind::kLanding, i, which);
    }
    if (thread.life == Life::kRuns) moves.add(Move::Kind::kThread, i);
  }
  for (std::uint32_t i = 0; i < scenario.streams.size(); ++i) {
    if (stream_may_move(world.own.streams[i], world)) moves.add(Move::Kind::kStream, i);
  }
  for (std::uint32_t process = 0; process <= kLeases; ++process) {
    const Process& state = world.own.processes[process];
    const bool mortal = (scenario.may_die >> process & 1U) != 0;
    if (mortal && !state.gone && world.own.deaths_left > 0) {
      moves.add(Move::Kind::kDeath, process);
    }
    if (state.gone && !state.quiet) moves.add(Move::Kind::kQuiet, process);
  }
}

bool make_move(const Scenario& scenario, World& world, const Move& move, std::uint32_t& ways,
               Observer* observer) {
  ways = 1;
  switch (move.kind) {
    case Move::Kind::kThread:
      return step_thread(scenario, world, move.who, move.which, ways, observer);
    case Move::Kind::kLanding:
      land(world, world.threads[move.who], move.which, observer);
      return true;
    case Move::Kind::kStream:
      move_stream(world, world.own.streams[move.who], observer);
      return true;
    case Move::Kind::kDeath:
      die(scenario, world, move.who);
      return true;
    case Move::Kind::kQuiet:
      become_quiet(scenario, world, move.who);
      return true;
  }
  return false;
}

}  // namespace limbo::model
