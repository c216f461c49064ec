// Working off a script, one step at a time.
#pragma once

#include "tests/model/rows.h"

namespace limbo::model {

// A thread in the midst of an operation.
struct Run {
  const Scenario& scenario;
  World& world;
  const std::uint32_t index;
  Memory& memory;

  [[nodiscard]] Thread& thread() const { return world.threads[index]; }
  [[nodiscard]] Thread::Head& head() const { return thread().head; }
  [[nodiscard]] World::Private& own() const { return world.own; }
  [[nodiscard]] const Script& script() const { return scenario.threads[index]; }
  [[nodiscard]] const Step& step() const { return script().steps[head().at]; }
  [[nodiscard]] std::uint32_t lease() const { return script().process - 1U; }
  [[nodiscard]] ModelRow row_of(std::uint32_t which) const { return {{&scenario, which}, &world}; }
  [[nodiscard]] const MessageSpec& spec(std::uint32_t message) const {
    return scenario.messages[message];
  }

  // Words that are left out where nobody would look.
  [[nodiscard]] Word unpins_pending() const {
    return scenario.awaits_unpins ? kUnpinsPending : kNowhere;
  }
  // The list of leases is read under the lock, under which it is changed: so reading it is no step,
  // but where a scenario changes it.
  [[nodiscard]] std::uint64_t lease_list() const {
    if (!scenario.lists_change) return memory.peek(kLeaseList);
    return memory.load(kLeaseList, std::memory_order_relaxed);
  }

  // The piece of a message's block; kNoIndex where mappings do not matter.
  [[nodiscard]] std::uint32_t piece_of(std::uint32_t message) const {
    return scenario.pieces.empty() ? kNoIndex : scenario.pieces[spec(message).block];
  }

  void go(Phase phase) const { head().phase = phase; }
  void next() const {
    ++head().at;
    head().phase = Phase::kBegin;
    head().note[0] = head().note[1] = head().note[2] = head().note[3] = 0;
  }
};

// One segment of the operation that the thread is at: it ends in another phase, or another
// operation.
void run_producer(const Run& run);
void run_consumer(const Run& run);
void run_publisher(const Run& run);

// How the allocator's steps change a block.
void unpin(const Scenario& scenario, World& world, std::uint32_t block);

// A number of its own for each stream of the message's sender: taken and enqueued under the
// timeline's lock, so in one step.
void advance_timelines(const Run& run);

// Lets pass who waits for a process that is gone.
void end_timeline(const Run& run);

// Whether the readers of a message can know that something before it will not come.
bool is_known_lost(const World& world, const Message& message);

// The work that fills a block: one step.
void write_data(const Run& run);

// Puts one entry on a stream.
void enqueue(Stream& stream, Queued::Kind kind, Word word, std::uint64_t value);

// What follows when a word has changed in memory.
void after_landing(World& world, Word word);

// What the kernel does with the lock of the folder of names when a process dies.
void let_go_names_lock(World& world, std::uint32_t process);

// Whether the name leads to the living process that has taken it, if there is one.
bool name_is_kept(const World& world);
// And otherwise to nobody, and nothing is left of the dead.
bool name_is_over(const World& world);

// The beginning of a scenario.
World beginning(const Scenario& scenario);

// One step of a thread: false if it can make none. `ways`: in how many ways it can go on.
bool step_thread(const Scenario& scenario, World& world, std::uint32_t thread, std::uint32_t choice,
                 std::uint32_t& ways, Observer* observer);

// Whether all is over, where nothing can move any more.
void look_at_end(const Scenario& scenario, World& world, Observer* observer);

}  // namespace limbo::model
