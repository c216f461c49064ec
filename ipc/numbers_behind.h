// What memory that was received came behind, beside its owner's own work: numbers of those who have
// sent it on. Where one of them will not come, the memory is marked (ReceivedBlock::orphaned).
//
// One for each received block. Memory that came by several messages is marked when a number of any of
// them does not come; the numbers of a message whose block is given back go into the block that stays.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "ipc/forwarders.h"
#include "ipc/layout.h"
#include "ipc/protocol/timeline.h"

namespace limbo {

class ProducerLink;

struct NumberBehind {
  TimelinePoint point;
  // The timeline's words: another consumer's, or those of this process itself for that owner.
  std::shared_ptr<LeaseTimelines> foreign = nullptr;
  std::shared_ptr<ProducerLink> own = nullptr;

  [[nodiscard]] protocol::Arrival arrival() const noexcept;
  [[nodiscard]] bool same_timeline(const NumberBehind& other) const noexcept {
    return foreign == other.foreign && own == other.own && point.index == other.point.index;
  }
};

// Thread-safe. Not for fork children, which do not have the words.
class NumbersBehind {
 public:
  // Once, before anybody else has it. `lost`: something is known never to come.
  void set(std::vector<NumberBehind>&& numbers, bool lost) noexcept;

  // Of each timeline the last number is kept (if that comes, so have the earlier ones), and nothing
  // of what has come: it does not grow with the messages. What does not fit into this process's
  // memory throws, and nothing has changed.
  void add_all(const NumbersBehind& other);

  // Whether one of them will not come. For ever, once it is so.
  [[nodiscard]] bool lost() const noexcept;

 private:
  mutable std::mutex mutex_;  // guards what follows; a leaf
  std::vector<NumberBehind> numbers_;
  bool lost_ = false;
};

}  // namespace limbo
