// Stream capture: entries of a capturing stream do not run, they become a graph's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "allocator/device/sim_device.h"
#include "allocator/device/sim_queue.h"

namespace limbo::sim {

// How many entries of each slot come before something that is captured.
using CaptureClock = std::map<std::uint32_t, std::uint64_t>;

// The captured entries, in the order of their calls (which is an order that the streams' own
// orders and the captured events allow).
struct Graph {
  struct Node {
    Op op;
    std::vector<Write> writes;
  };
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<void>> kept;  // what lives as long as the graph
};

struct Capture {
  std::uint32_t origin = 0;  // the slot it began on
  SimCaptureMode mode = SimCaptureMode::kGlobal;
  bool valid = true;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::map<std::uint32_t, CaptureClock> clocks;  // by slot: what its next entry comes behind
};

// Which stream slots are being captured. Thread-safe.
class Captures {
 public:
  // Null when the slot is not being captured.
  [[nodiscard]] std::shared_ptr<Capture> of(std::uint32_t slot);
  // True: the slot is capturing and the entry is the graph's now.
  bool add(std::uint32_t slot, const Op& op, std::span<const Write> writes);
  // The graph that the slot is captured into keeps `object`. False: it is not being captured, or
  // the capture is lost.
  bool keep(std::uint32_t slot, const std::shared_ptr<void>& object);
  // What the slot's next entry comes behind; empty when it is not being captured.
  [[nodiscard]] CaptureClock clock(std::uint32_t slot);
  // Draws the slot into the capture, behind what `clock` says, as waiting for a captured event does.
  // False: the capture has ended, or the slot belongs to another.
  bool join(std::uint32_t slot, const std::shared_ptr<Capture>& capture, const CaptureClock& clock);
  // False: the slot is capturing already.
  bool begin(std::uint32_t slot, SimCaptureMode mode);
  // Null when no capture began on the slot. Ends it on every stream that it has drawn in.
  [[nodiscard]] std::shared_ptr<Capture> end(std::uint32_t slot);
  // The slot's capture, if any, is lost.
  void invalidate(std::uint32_t slot);
  // True when there was one in global mode.
  bool invalidate_global();

 private:
  std::mutex mutex_;  // guards all below; a leaf
  std::map<std::uint32_t, std::shared_ptr<Capture>> by_slot_;
};

}  // namespace limbo::sim
