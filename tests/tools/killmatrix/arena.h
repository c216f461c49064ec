// What the processes of a kill matrix share besides Limbo: memory that outlives each of them.
//
// Counters, what was found wrong, where every canary comes from, and the last actions of every
// process, all readable after its death. Made by the driver before it forks; everybody may die at
// any instruction, so every word is an atomic and nothing is locked.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/fail_points.h"
#include "tests/tools/killmatrix/random.h"

namespace limbo::killmatrix {

inline constexpr std::size_t kMostSlots = 56;  // processes at one time

// One line of a process's diary.
struct LogLine {
  std::atomic<std::uint64_t> when_us{0};
  std::array<char, 112> text{};
};

// A place that one process after the other takes: its incarnations.
struct SlotPage {
  std::atomic<std::uint32_t> incarnation{0};
  // The incarnation that is about to die, or to lose its context: said before that, by whoever does
  // it, so that nobody has to guess later whether what was queued there could be missing.
  std::atomic<std::uint32_t> ending{0};
  std::atomic<bool> gets_mail{false};           // not while it waits for its turn
  std::atomic<std::uint64_t> busy_since_us{0};  // 0: between two actions
  std::atomic<std::uint64_t> helper_busy_since_us{0};
  std::atomic<std::int32_t> fork_child{0};  // its pid
  std::atomic<bool> context_lost{false};    // its device refuses everything
  std::atomic<bool> may_fail{false};        // some fail point throws: a connection may end of it
  std::atomic<bool> has_flooded{false};     // it may have more claims than a row takes
  std::atomic<std::uint32_t> next_line{0};
  std::array<LogLine, 128> lines;
};

// Which block a canary was written to.
struct Origin {
  std::atomic<std::uint32_t> canary{0};
  std::atomic<std::uint32_t> incarnation{0};
  std::atomic<std::uint32_t> slot{0};
  std::atomic<std::uint32_t> writer{0};  // 0: the block's owner, 1: a consumer
  // 1: some message of the block has a short limit. What is sent on has it too, where its forwarder
  // holds such a message, be it in another thread.
  std::atomic<std::uint32_t> limited{0};
};

// What was found. All but early reuse counts as lost.
enum class Harm : std::uint32_t {
  kNone,
  kEarly,    // a block was reused, or its message ended, under a holder
  kNotBack,  // something did not come back at a balance
  kName,     // what is published is not found under its name
  kOther,    // a promise, an invariant, an error without a reason, an end that nobody has planned
};
inline constexpr std::size_t kHarms = 5;

[[nodiscard]] std::string_view name_of(Harm harm) noexcept;

struct Finding {
  std::atomic<std::uint32_t> harm{0};  // written last
  std::uint32_t slot = 0;
  std::uint32_t incarnation = 0;
  std::array<char, 512> text{};
};

struct Arena {
  std::uint64_t start_us = 0;
  std::atomic<std::uint32_t> last_canary{0};
  std::atomic<std::uint64_t> sends{0};
  std::atomic<std::uint64_t> forwards{0};
  std::atomic<std::uint64_t> receives{0};
  std::atomic<std::uint64_t> refusals{0};  // receives that were refused as they may be
  std::atomic<std::uint64_t> checks{0};    // contents that were compared
  std::atomic<std::uint64_t> orphans{0};   // contents that nobody promises any more
  std::atomic<std::uint64_t> out_of_memory{0};
  std::atomic<std::uint64_t> planned_errors{0};  // calls that met what a fail point threw
  std::array<std::atomic<std::uint64_t>, kHarms> harms{};
  std::array<std::atomic<std::uint64_t>, kFailPointCount>
      passed{};  // processes that passed a point
  std::atomic<std::uint32_t> findings_taken{0};
  std::array<Finding, 32> findings;
  std::array<Origin, 1U << 16> origins;
  std::array<SlotPage, kMostSlots> slots;

  [[nodiscard]] std::uint64_t count(Harm harm) const noexcept {
    return harms[static_cast<std::size_t>(harm)].load();
  }
  [[nodiscard]] std::uint64_t early() const noexcept { return count(Harm::kEarly); }
  [[nodiscard]] std::uint64_t lost() const noexcept {
    return count(Harm::kNotBack) + count(Harm::kName) + count(Harm::kOther);
  }
};

// Maps an arena that fork children share. Throws std::runtime_error.
[[nodiscard]] Arena& make_arena();

[[nodiscard]] std::uint64_t now_us() noexcept;  // of the monotonic clock

// One of the first `slots` that get mail, but `except`; any other one where nobody does.
[[nodiscard]] std::uint32_t pick_receiver(const Arena& arena, Random& random, std::uint32_t slots,
                                          std::optional<std::uint32_t> except = std::nullopt);

// One process's pen: who writes.
class Diary {
 public:
  Diary(Arena& arena, std::uint32_t slot, std::uint32_t incarnation)
      : arena_(&arena), slot_(slot), incarnation_(incarnation) {}

  void line(const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));
  // Something that must not be. Counted as `harm`; the text is kept while there is room.
  void found(Harm harm, const char* format, ...) noexcept __attribute__((format(printf, 3, 4)));

  // A number that no block ever held; never 0, which fresh memory holds.
  [[nodiscard]] std::uint32_t new_canary(bool by_consumer) noexcept;
  // Of the block that holds it: said before a message with a short limit is made.
  void limit(std::uint32_t canary) noexcept { origin(canary).limited.store(1); }
  [[nodiscard]] bool is_limited(std::uint32_t canary) const noexcept {
    return origin(canary).limited.load() != 0;
  }

  // The process ends, or loses its context, at once behind this.
  void ends() noexcept { arena_->slots[slot_].ending.store(incarnation_); }

  [[nodiscard]] bool context_lost() const noexcept {
    return arena_->slots[slot_].context_lost.load();
  }
  [[nodiscard]] Arena& arena() const noexcept { return *arena_; }
  [[nodiscard]] std::uint32_t slot() const noexcept { return slot_; }
  [[nodiscard]] std::uint32_t incarnation() const noexcept { return incarnation_; }

 private:
  [[nodiscard]] Origin& origin(std::uint32_t canary) const noexcept {
    return arena_->origins[canary % arena_->origins.size()];
  }

  Arena* arena_;
  std::uint32_t slot_;
  std::uint32_t incarnation_;
};

// "canary 17 of process 3 (incarnation 12), written by its owner".
[[nodiscard]] std::string describe_canary(const Arena& arena, std::uint32_t canary);

// The last lines of a slot, oldest first, each with its newline.
[[nodiscard]] std::string last_lines(const Arena& arena, std::uint32_t slot, std::size_t most);

}  // namespace limbo::killmatrix
