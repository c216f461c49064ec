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
     "pieces of other processes that stay mapped while no block of them is held"});
const Option kBytes({"import_cache_bytes", "bytes", 0, std::int64_t{1} << 62, std::int64_t{1} << 40,
                     "their size altogether; closing one can make launches wait"});

}  // namespace

Unmapper::Unmapper(Device& device, Links& links, ReleaseQueue& releases)
    : device_(device), links_(links), releases_(releases) {}

std::optional<Unmapper::Clock::time_point> Unmapper::run(Clock::time_point) {
  releases_.poll();
  std::vector<Candidate> kept;
  bool dead_links = false;
  for (const auto& link : links_.all()) {
    const bool dead = !link->usable();
    for (const ImportCache::Idle& idle : link->imports().idle()) {
      Candidate candidate{link, idle};
      if (dead || idle.wanted) {
        close(candidate);
      } else {
        kept.push_back(std::move(candidate));
      }
    }
    if (!dead) continue;
    dead_links = true;
    forget_finished(link);
  }

  std::sort(kept.begin(), kept.end(), [](const Candidate& one, const Candidate& other) {
    return one.idle.last_use > other.idle.last_use;
  });
  std::uint64_t pieces = 0;
  std::uint64_t bytes = 0;
  const auto most_pieces = static_cast<std::uint64_t>(kCachedPieces.value());
  const auto most_bytes = static_cast<std::uint64_t>(kBytes.value());
  for (const Candidate& candidate : kept) {
    if (pieces + 1 > most_pieces || bytes + candidate.idle.size_bytes > most_bytes) {
      close(candidate);
      continue;
    }
    ++pieces;
    bytes += candidate.idle.size_bytes;
  }
  if (pieces == 0 && !dead_links) return std::nullopt;
  return Clock::now() + kLookAgainAtPieces;
}

void Unmapper::close(const Candidate& candidate) {
  try {
    candidate.link->imports().close(candidate.idle.mapping);
  } catch (const Error&) {
    // It stays mapped and marked: its producer keeps the memory until this process ends.
  }
}

// Nothing of it is held, landing or mapped: the tables can go. A stream may still have a wait or a
// last dirty word on them behind it, so the devices are waited for.
void Unmapper::forget_finished(const std::shared_ptr<ProducerLink>& link) {
  if (link->row().occupied() > 0 || link->imports().counts().mapped > 0) return;
  try {
    for (int device = 0; device < device_.device_count(); ++device) {
      device_.synchronize_device(device);
    }
  } catch (const Error&) {
    return;  // a broken context may still write: the tables stay
  }
  links_.forget(link);
}

}  // namespace limbo
