// What the target plays with: an owner, an honest consumer and a broken one, and what all of them did.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "allocator/options.h"
#include "ipc/fail_point_hooks.h"
#include "tests/fuzz/target.h"
#include "tests/unit/producer_support.h"

namespace limbo::fuzz::claim_rows {

using protocol::ClaimState;
using protocol::ClaimVerdict;
using std::chrono::hours;
using std::chrono::milliseconds;
using testing::PlayedConsumer;

inline constexpr std::size_t kMostActions = 256;
inline constexpr std::size_t kMostMessages = 24;
inline constexpr std::size_t kBlockBytes[] = {512, 4096, 3 << 20};
inline constexpr std::int64_t kScansPerSecond[] = {1, 1'000, 200'000};

inline SimDevice& sim() {
  static SimDevice& made = *testing::make_sim().release();  // for all inputs: it has a process
  return made;
}

// For all inputs as well: each leaves it as it found it.
inline Allocator& allocator() {
  static Allocator& made = *new Allocator(sim());
  return made;
}

inline Capacities tables() {
  return {.exports = 32, .pieces = 8, .claims = 1024, .timelines = 4};
}

// Stands for the pidfd and the life line of whoever sends on.
inline int any_descriptor() {
  static const int made = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return made;
}

enum class SentBy { kOwner, kHonest, kBroken };

struct Message {
  SentBy sent_by = SentBy::kOwner;
  std::byte* data = nullptr;
  bool owned = true;  // until its owner frees it
  std::size_t size_bytes = 0;
  ExportTicket ticket;
  int held = 0;                       // claims of the honest one that stand
  std::optional<std::uint32_t> slot;  // of the first of them
};

class World {
 public:
  explicit World(std::int64_t scans)
      : scans_per_second_(scans),
        producer_(
            std::make_unique<Producer>(sim(), allocator(), Incarnation{1, 2}, tables(), scans)),
        honest_(std::make_unique<PlayedConsumer>(*producer_, 1)),
        broken_(std::make_unique<PlayedConsumer>(*producer_, 2)),
        timelines_(SharedMemory::map_received(
            "fuzz", ::fcntl(broken_->grant().own_timelines_fd, F_DUPFD_CLOEXEC, 0),
            timelines_bytes(tables()), ReceiverMay::kWrite)) {
    allocator().set_lender(producer_.get());
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() {
    allocator().set_lender(nullptr);
    producer_.reset();
  }

  void act(Input& input);
  void check();
  void end();

 private:
  Message* pick(Input& input) {
    const std::size_t index = input.number();
    return messages_.empty() ? nullptr : &messages_[index % messages_.size()];
  }

  void share(Input& input);
  void share_again(Message& message);
  void free(Message& message);
  void claim(Message& message);
  void release(Message& message);
  void scribble(Input& input);
  // What one word of its timelines is set to; to be called at once, or in the middle of something.
  [[nodiscard]] std::function<void()> timeline_scribble(Input& input);
  void claim_by_broken(Input& input);
  void forward(Input& input, PlayedConsumer& by, const Message& message, std::uint32_t at);
  void forward_by_honest(Input& input);
  void forward_by_broken(Input& input);
  void take_back_by_broken(Input& input);
  void sends_on(Input& input);
  void ask_for_timelines();
  void open_own(Input& input);
  void storm();
  void owner_acts(Input& input);
  void check_scans();
  [[nodiscard]] std::uint64_t claim_word(Input& input);
  [[nodiscard]] std::uint32_t slot(Input& input) {
    // Few, so that they meet: at both ends of both groups.
    constexpr std::uint32_t kSlots[] = {0, 1, 2, 511, 512, 513, 1023};
    return kSlots[input.below(std::size(kSlots))];
  }

  const std::int64_t scans_per_second_;
  const Producer::Clock::time_point began_ = Producer::Clock::now();
  std::uint64_t thorough_looks_ = 0;
  std::uint64_t scans_seen_ = 0;  // of the broken one's row

  std::unique_ptr<Producer> producer_;
  std::unique_ptr<PlayedConsumer> honest_;
  std::unique_ptr<PlayedConsumer> broken_;
  const SharedMemory timelines_;  // the broken one's
  std::vector<Message> messages_;
  std::vector<ExportTicket> marked_;  // pieces that the honest one marks
};

}  // namespace limbo::fuzz::claim_rows
