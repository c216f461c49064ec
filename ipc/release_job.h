// One claim that is to be given back: what it names, and what its end has to wait for.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "ipc/producer_link.h"
#include "ipc/protocol/release.h"
#include "ipc/stream_use.h"

namespace limbo {

// The end of a graph: destroyed, with everything that was instantiated from it, and no launch of it
// runs any more. Set by the driver (Device::keep_while_graph_lives), never taken back.
struct GraphEnd {
  std::atomic<bool> over{false};
};
using GraphEnds = std::vector<std::shared_ptr<const GraphEnd>>;

[[nodiscard]] inline bool any_lives(const GraphEnds& graphs) noexcept {
  for (const auto& graph : graphs) {
    if (!graph->over.load(std::memory_order_acquire)) return true;
  }
  return false;
}

struct ReleaseJob {
  std::shared_ptr<ProducerLink> link;
  protocol::Release release;
  Mapping* mapping = nullptr;
  std::vector<StreamUse> streams;  // each once; none: the contexts of all that used it are lost
  GraphEnds graphs;                // that use the storage
  bool enqueued = false;           // a batch may have been: it may write
  bool left_behind = false;        // an earlier batch may, late: its slot is never used again
  bool in_graph = false;           // that batch may have become part of a graph
  bool unknown_graph = false;      // ... of one whose end will not be told
  bool may_run_on = false;         // work of a device left out of `streams`, as lost, may run on
};

// No stream's passing would end it: none that used the block will pass, or what did may write it still.
[[nodiscard]] inline bool ends_as_lost(const ReleaseJob& job) noexcept {
  return job.streams.empty() || job.may_run_on;
}

// Nodes are made when a claim is received: giving it back never needs memory for them.
using ReleaseJobs = std::list<ReleaseJob>;

}  // namespace limbo
