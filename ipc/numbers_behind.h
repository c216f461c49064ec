// What memory that was received came behind, beside its owner's own work: numbers of those who have
// sent it on. Where one of them will not come, the memory is marked (ReceivedBlock::orphaned). And the
// streams on which it came, which have waited for everything that a message is behind.
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
#include "ipc/stream_use.h"

namespace limbo {

class ProducerLink;

struct NumberBehind {
  TimelinePoint point;
  // The timeline's words: another consumer's, or those of this process itself for that owner.
  std::shared_ptr<LeaseTimelines> foreign = nullptr;
  std::shared_ptr<ProducerLink> own = nullptr;
  // Of memory of this process's own: what is needed to name it to others.
  std::shared_ptr<const ForwarderSigns> signs = nullptr;

  [[nodiscard]] protocol::Arrival arrival() const noexcept;
  [[nodiscard]] bool same_timeline(const NumberBehind& other) const noexcept {
    return foreign == other.foreign && own == other.own && point.index == other.point.index;
  }
};

// What further messages have brought with them, for whoever sends the memory on.
struct AlsoBehind {
  bool any = false;                   // else the one message that it came by says everything
  bool lost = false;                  // something will never come
  std::vector<NumberBehind> numbers;  // that have not come, of all messages
  std::vector<StreamUse> streams;     // that have received further ones, each once
};

// Thread-safe. Not for fork children, which do not have the words.
class NumbersBehind {
 public:
  // Once, before anybody else has it. `lost`: something is known never to come. `received_on`: the
  // stream that has waited.
  void set(std::vector<NumberBehind>&& numbers, bool lost,
           const StreamUse& received_on = {}) noexcept;

  // Of each timeline the last number is kept (if that comes, so have the earlier ones), and nothing
  // of what has come: it does not grow with the messages; nor do the streams, each of which is kept
  // once. What does not fit into this process's memory throws, and nothing has changed.
  void add_all(const NumbersBehind& other);

  [[nodiscard]] AlsoBehind also() const;

  // Whether one of them will not come. For ever, once it is so.
  [[nodiscard]] bool lost() const noexcept;

 private:
  mutable std::mutex mutex_;  // guards what follows; a leaf
  std::vector<NumberBehind> numbers_;
  bool lost_ = false;
  StreamUse received_on_;
  bool any_also_ = false;
  std::vector<StreamUse> also_on_;
};

}  // namespace limbo
