// A small model of the orders between a claiming consumer and a closing producer: every
// interleaving of the accesses of the very functions that the product runs, with stores that
// linger.
//
// A store that is not sequentially consistent, and an addition likewise, waits in its thread's
// buffer and lands later: a release behind everything before it, a relaxed store in any order
// between words. A sequentially consistent one lands at once, behind all that waited. Loads see
// their own thread's buffer first. Whoever forgets an order is found out (the last test forgets
// them).
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ipc/protocol/claim.h"
#include "ipc/protocol/close.h"

namespace limbo::protocol {
namespace {

// Words of the model; every other word is 0 for ever, and reading it is no step.
enum Word : int { kExport, kClaim, kGroupDirty, kLeaseDirty, kWords, kElsewhere = -1 };

struct Pending {
  int word = 0;
  std::uint64_t value = 0;
  bool add = false;
  bool release = false;
  friend auto operator<=>(const Pending&, const Pending&) = default;
};

struct ThreadState {
  std::vector<std::uint64_t> log;  // what its accesses returned so far
  std::vector<Pending> buffer;
  bool finished = false;
  int outcome = 0;
  friend auto operator<=>(const ThreadState&, const ThreadState&) = default;
};

struct World {
  std::array<std::uint64_t, kWords> words{};
  std::vector<ThreadState> threads;
  friend auto operator<=>(const World&, const World&) = default;
};

void land(World& world, ThreadState& thread, std::size_t which) {
  const Pending pending = thread.buffer[which];
  thread.buffer.erase(thread.buffer.begin() + static_cast<std::ptrdiff_t>(which));
  std::uint64_t& word = world.words[static_cast<std::size_t>(pending.word)];
  word = pending.add ? word + pending.value : pending.value;
}

bool may_land(const ThreadState& thread, std::size_t which) {
  for (std::size_t before = 0; before < which; ++before) {
    if (thread.buffer[which].release || thread.buffer[before].word == thread.buffer[which].word) {
      return false;
    }
  }
  return true;
}

struct Stop {};  // the one new access has been made

// Repeats the accesses that are in the log and makes one more.
class ModelMemory {
 public:
  using Ref = int;

  ModelMemory(World& world, std::size_t thread, bool orders_forgotten)
      : world_(world), thread_(thread), orders_forgotten_(orders_forgotten) {}

  std::uint64_t load(Ref word, std::memory_order) {
    if (word == kElsewhere) return 0;
    return access([&] {
      std::uint64_t value = world_.words[static_cast<std::size_t>(word)];
      for (const Pending& pending : self().buffer) {
        if (pending.word == word) value = pending.add ? value + pending.value : pending.value;
      }
      return value;
    });
  }
  void store(Ref word, std::uint64_t value, std::memory_order order) {
    write({word, value, false, order != std::memory_order_relaxed}, order);
  }
  std::uint64_t fetch_add(Ref word, std::uint64_t value, std::memory_order order) {
    write({word, value, true, order != std::memory_order_relaxed}, order);
    return 0;  // nobody asks
  }
  // Goes on when every other thread is done and everything has landed.
  void await_the_others() {
    access([&]() -> std::uint64_t {
      for (std::size_t i = 0; i < world_.threads.size(); ++i) {
        const ThreadState& thread = world_.threads[i];
        if (!thread.buffer.empty() || (i != thread_ && !thread.finished)) throw NotNow{};
      }
      return 0;
    });
  }
  struct NotNow {};

 private:
  ThreadState& self() { return world_.threads[thread_]; }

  void write(const Pending& pending, std::memory_order order) {
    access([&]() -> std::uint64_t {
      self().buffer.push_back(pending);
      if (order == std::memory_order_seq_cst && !orders_forgotten_) {
        while (!self().buffer.empty()) land(world_, self(), 0);
      }
      return 0;
    });
  }
  template <class Act>
  std::uint64_t access(Act&& act) {
    if (next_ < self().log.size()) return self().log[next_++];
    if (made_one_) throw Stop{};
    made_one_ = true;
    self().log.push_back(act());
    return self().log[next_++];
  }

  World& world_;
  const std::size_t thread_;
  const bool orders_forgotten_;
  std::size_t next_ = 0;
  bool made_one_ = false;
};

using Body = std::function<int(ModelMemory&)>;  // returns its outcome

struct Exploration {
  std::vector<Body> bodies;
  std::array<bool, 2> orders_forgotten{};  // by thread
  std::function<void(const World&)> at_the_end;

  std::set<World> seen;

  void explore(const World& world) {
    if (!seen.insert(world).second) return;
    bool moved = false;
    for (std::size_t t = 0; t < bodies.size(); ++t) {
      for (std::size_t which = 0; which < world.threads[t].buffer.size(); ++which) {
        if (!may_land(world.threads[t], which)) continue;
        World next = world;
        land(next, next.threads[t], which);
        moved = true;
        explore(next);
      }
      if (world.threads[t].finished) continue;
      World next = world;
      try {
        ModelMemory memory(next, t, orders_forgotten[t]);
        try {
          next.threads[t].outcome = bodies[t](memory);
          next.threads[t].finished = true;
        } catch (const Stop&) {
        }
        moved = true;
        explore(next);
      } catch (const ModelMemory::NotNow&) {
      }
    }
    if (!moved) at_the_end(world);
  }
};

struct ModelRow {
  int lease_dirty_host() const { return kLeaseDirty; }
  int lease_dirty_gpu() const { return kElsewhere; }
  int group_dirty_host(std::uint32_t) const { return kGroupDirty; }
  int group_dirty_gpu(std::uint32_t) const { return kElsewhere; }
  int claim(std::uint32_t slot) const { return slot == 0 ? kClaim : kElsewhere; }
  std::uint32_t groups() const { return 1; }
  Seen& seen_lease() { return lease; }
  Seen& seen_group(std::uint32_t) { return group; }
  std::uint64_t& mirror(std::uint32_t slot) {
    never = 0;
    return slot == 0 ? mirror_of_the_slot : never;
  }
  bool has_mirrors(std::uint32_t) const { return mirror_of_the_slot != 0; }
  bool may_scan() const { return true; }

  Seen lease;
  Seen group;
  std::uint64_t mirror_of_the_slot = 0;
  std::uint64_t never = 0;
};

struct ModelExports {
  std::uint32_t capacity() const { return 1; }
  int word(std::uint32_t) const { return kExport; }
  void claimed(std::uint32_t, ModelRow&) {}
  void held_more(std::uint32_t, ModelRow&, std::uint32_t) { ++holders; }
  void held_less(std::uint32_t, ModelRow&, std::uint32_t) { --holders; }
  int held(std::uint32_t) const { return holders; }
  void over(std::uint32_t) { ++closed; }
  void stays(std::uint32_t, bool) {}

  int holders = 0;
  int closed = 0;
};

constexpr ClaimTarget kModelTarget{0, 7};
constexpr int kStood = 1;
constexpr int kRefused = 2;

// A message that was opened before and whose owner has let go, opened once more.
int claimer(ModelMemory& memory, bool releases) {
  const ModelRow row;
  const auto verdict = claim(memory, row, 0, kExport, kModelTarget, [] { return false; });
  if (verdict != ClaimVerdict::kStands) return kRefused;
  if (releases) release_by_host(memory, row, 0, kModelTarget);
  return kStood;
}

// Tries to close `attempts` times, and then once more when all is quiet; returns in which attempt
// (from 1) the export was over.
int closer(ModelMemory& memory, int attempts) {
  ModelRow row;
  ModelExports exports;
  for (int attempt = 1;; ++attempt) {
    const bool last = attempt > attempts;
    if (last) memory.await_the_others();
    note_row(memory, row, exports, std::memory_order_acquire, Look::kChanged);
    if (exports.held(0) == 0) {
      close_batch(memory, exports, std::array<std::uint32_t, 1>{0},
                  [&] { return std::array<ModelRow*, 1>{&row}; });
    }
    EXPECT_GE(exports.holders, 0);
    if (exports.closed > 0) return attempt;
    if (last) return 0;
  }
}

World beginning() {
  World world;
  world.words[kExport] = encode(ExportWord{7, EndReason::kClosed, ExportState::kOpen});
  world.threads.resize(2);
  return world;
}

// The claim that stands keeps the export, in every order of events.
TEST(ProtocolOrders, NothingIsClosedUnderAHolder) {
  Exploration exploration;
  exploration.bodies = {[](ModelMemory& memory) { return claimer(memory, false); },
                        [](ModelMemory& memory) { return closer(memory, 2); }};
  std::set<std::pair<int, bool>> ends;
  exploration.at_the_end = [&](const World& world) {
    ASSERT_TRUE(world.threads[0].finished && world.threads[1].finished);
    const bool closed = world.threads[1].outcome != 0;
    ends.emplace(world.threads[0].outcome, closed);
  };
  exploration.explore(beginning());
  EXPECT_EQ(ends, (std::set<std::pair<int, bool>>{{kStood, false}, {kRefused, true}}));
  RecordProperty("states", static_cast<int>(exploration.seen.size()));
}

// And what was released, or refused, is closed at the latest by the look after it.
TEST(ProtocolOrders, NothingIsLost) {
  Exploration exploration;
  exploration.bodies = {[](ModelMemory& memory) { return claimer(memory, true); },
                        [](ModelMemory& memory) { return closer(memory, 2); }};
  std::set<int> attempts;
  exploration.at_the_end = [&](const World& world) {
    ASSERT_TRUE(world.threads[0].finished && world.threads[1].finished);
    ASSERT_NE(world.threads[1].outcome, 0);
    attempts.insert(world.threads[1].outcome);
  };
  exploration.explore(beginning());
  EXPECT_EQ(attempts, (std::set<int>{1, 2, 3}));
}

// The negative controls: with sequential consistency forgotten on either side, the model sees a
// block that is closed under its holder.
TEST(ProtocolOrders, ForgottenOrdersAreFoundOut) {
  for (const std::size_t forgetful : {0U, 1U}) {
    Exploration exploration;
    exploration.orders_forgotten[forgetful] = true;
    exploration.bodies = {[](ModelMemory& memory) { return claimer(memory, false); },
                          [](ModelMemory& memory) { return closer(memory, 2); }};
    bool closed_under_a_holder = false;
    exploration.at_the_end = [&](const World& world) {
      closed_under_a_holder |= world.threads[0].outcome == kStood && world.threads[1].outcome != 0;
    };
    exploration.explore(beginning());
    EXPECT_TRUE(closed_under_a_holder) << forgetful;
  }
}

}  // namespace
}  // namespace limbo::protocol
