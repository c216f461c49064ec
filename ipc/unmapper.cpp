#include "ipc/unmapper.h"

#include <algorithm>
#include <vector>

#include "allocator/error.h"
#include "allocator/options.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kLookAgainAtPieces{100};

const Option kCachedPieces(
    {"import_cache_pieces", "", 0, 1 << 22, 16'384,
     "pieces of other processes that stay mapped while no block of them is held; read whenever one "
     "is let go of"});
const Option kBytes(
    {"import_cache_bytes", "bytes", 0, std::int64_t{1} << 62, std::int64_t{1} << 40,
     "bytes of other processes' pieces that stay mapped while no block of them is "
     "held; what is beyond is unmapped, and launches can wait for that; read whenever "
     "one is let go of"});

}  // namespace

Unmapper::Unmapper(Device& device, Links& links, ReleaseQueue& releases)
    : device_(device), links_(links), releases_(releases) {}

// What somebody waits for comes first: a dead producer's tables and releases that need an idle device
// wait for one device at a time, and in between it is looked again.
std::optional<Unmapper::Clock::time_point> Unmapper::run(Clock::time_point) {
  releases_.poll();
  std::uint64_t kept = close_mappings();
  bool look_again = releases_.run_when_idle();
  bool at_once = false;
  for (const auto& link : links_.all()) {
    look_again |= link->has_finished();
    if (link->usable()) continue;
    look_again = true;
    // A thread that had the link before it was lost may claim by it still: no more from here on.
    if (!link->row().close_unless_occupied() || link->imports().counts().mapped > 0) continue;
    at_once |= !wait_for_one_device(link);
    kept = close_mappings();
  }
  if (at_once) return Clock::now();
  if (kept == 0 && !look_again) return std::nullopt;
  return Clock::now() + kLookAgainAtPieces;
}

// Closes what is wanted back, what belongs to the dead, and what is too much. Returns how many idle
// mappings stay.
std::uint64_t Unmapper::close_mappings() {
  std::vector<Candidate> kept;
  for (const auto& link : links_.all()) {
    const bool dead = !link->usable();
    link->drop_finished();
    for (const ImportCache::Idle& idle : link->imports().idle()) {
      if (dead || idle.wanted) {
        close({link, idle});
      } else {
        kept.push_back({link, idle});
      }
    }
  }
  std::sort(kept.begin(), kept.end(), [](const Candidate& one, const Candidate& other) {
    return one.idle.last_use > other.idle.last_use;
  });
  std::uint64_t pieces = 0;
  std::uint64_t bytes = 0;
  const auto most_pieces = static_cast<std::uint64_t>(kCachedPieces.value_or_default());
  const auto most_bytes = static_cast<std::uint64_t>(kBytes.value_or_default());
  for (const Candidate& candidate : kept) {
    if (pieces + 1 > most_pieces || bytes + candidate.idle.size_bytes > most_bytes) {
      close(candidate);
      continue;
    }
    ++pieces;
    bytes += candidate.idle.size_bytes;
  }
  return pieces;
}

void Unmapper::close(const Candidate& candidate) {
  try {
    candidate.link->imports().close(candidate.idle.mapping);
  } catch (const std::exception&) {
    // It stays mapped and marked: its producer keeps the memory until this process ends.
  }
}

// Nothing of the link is held, landing or mapped: when its devices have been idle, the tables can go.
// Until then a stream may have a wait or a last dirty word on them behind it. A device whose context
// is lost may still write: the tables stay.
bool Unmapper::wait_for_one_device(const std::shared_ptr<ProducerLink>& link) {
  std::uint64_t& seen = idle_devices_[link.get()];
  const int count = std::min(device_.device_count(), 64);
  for (int device = 0; device < count; ++device) {
    const std::uint64_t bit = std::uint64_t{1} << device;
    if ((seen & bit) != 0) continue;
    try {
      device_.synchronize_device(device);
    } catch (const Error&) {
      return true;  // asked again with the next look
    }
    seen |= bit;
    return false;
  }
  idle_devices_.erase(link.get());
  links_.forget(link);
  return true;
}

}  // namespace limbo
