// A trace tracker as programs write them, which looks at whether what it hears fits together.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <ios>
#include <map>
#include <utility>

#include "allocator/trace_entry.h"

namespace limbo::testing {

// A tracker as one writes it for torch, which calls it under a lock: it has none of its own. What it
// hears must fit together at every entry.
class LocklessTracker {
 public:
  void operator()(const TraceEntry& entry) {
    OfDevice& known = of_.at(static_cast<std::size_t>(entry.device));
    switch (entry.action) {
      case TraceAction::kSegmentAlloc:
        expect(known.segments.emplace(entry.address, entry.size_bytes).second, entry);
        break;
      case TraceAction::kSegmentFree: {
        expect(known.segments.erase(entry.address) == 1, entry);
        const auto first = known.blocks.lower_bound(entry.address);
        const auto last = known.blocks.lower_bound(entry.address + entry.size_bytes);
        expect(first == last, entry);  // all of its blocks have ended
        break;
      }
      case TraceAction::kAlloc: {
        const auto segment = known.segments.upper_bound(entry.address);
        expect(segment != known.segments.begin(), entry);
        expect(known.blocks.emplace(entry.address, false).second, entry);
        break;
      }
      case TraceAction::kFreeRequested: {
        const auto block = known.blocks.find(entry.address);
        expect(block != known.blocks.end() && !std::exchange(block->second, true), entry);
        break;
      }
      case TraceAction::kFreeCompleted: {
        const auto block = known.blocks.find(entry.address);
        const bool freed = block != known.blocks.end() && block->second;
        expect(freed, entry);
        if (freed) known.blocks.erase(block);
        break;
      }
      default:
        break;
    }
    ++known.heard;
  }

  // How many blocks and segments have not ended.
  [[nodiscard]] std::size_t left() const {
    std::size_t count = 0;
    for (const OfDevice& known : of_) count += known.segments.size() + known.blocks.size();
    return count;
  }
  [[nodiscard]] std::size_t heard() const {
    std::size_t count = 0;
    for (const OfDevice& known : of_) count += known.heard;
    return count;
  }

 private:
  struct OfDevice {
    std::map<std::uintptr_t, std::size_t> segments;
    std::map<std::uintptr_t, bool> blocks;  // whether its free was requested
    std::size_t heard = 0;                  // devices are told of at the same time
  };

  static void expect(bool fits, const TraceEntry& entry) {
    if (fits) return;
    ADD_FAILURE() << "an entry that does not fit: action " << static_cast<int>(entry.action)
                  << " at " << std::hex << entry.address;
  }

  std::array<OfDevice, 4> of_;
};

}  // namespace limbo::testing
