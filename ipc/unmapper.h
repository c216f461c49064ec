// Closes mappings: on a thread of its own, because with memory of cudaMalloc a close waits until
// the device is idle, and launches of other threads wait meanwhile. So it happens only
//
// - where a producer wants its memory back (the flag on its piece), or is dead;
// - where the idle mappings pass the bounds of the options import_cache_pieces and
//   import_cache_bytes: the least recently used first;
//
// and never while a claim on the piece is held or its release has not landed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "ipc/links.h"
#include "ipc/release_queue.h"
#include "ipc/service_thread.h"

namespace limbo {

class Unmapper {
 public:
  using Clock = ServiceThread::Clock;

  Unmapper(Device& device, Links& links, ReleaseQueue& releases);

  // The unmapper thread's periodic: looks every 100 ms while there are idle mappings, or links to
  // dead producers.
  [[nodiscard]] std::optional<Clock::time_point> run(Clock::time_point now);

 private:
  struct Candidate {
    std::shared_ptr<ProducerLink> link;
    ImportCache::Idle idle;
  };

  std::uint64_t close_mappings();
  void close(const Candidate& candidate);
  // False: there are further devices to wait for, or the link is to be forgotten.
  bool wait_for_one_device(const std::shared_ptr<ProducerLink>& link);

  Device& device_;
  Links& links_;
  ReleaseQueue& releases_;
  // Devices, a bit each, that were idle after a link's last use of them.
  std::map<const ProducerLink*, std::uint64_t> idle_devices_;
};

}  // namespace limbo
