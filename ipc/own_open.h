// A descriptor opened in the process that made it: the block itself, by the pin count alone.
//
// No driver call where the receiving stream is the block's home; on another stream it waits there
// for the send's number, and the block, once its owner has freed it, is reused only when that
// stream has passed what it had queued at the release.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "allocator/allocator.h"
#include "ipc/producer.h"
#include "ipc/receive.h"
#include "ipc/service_thread.h"

namespace limbo {

// Pins of blocks that are in limbo and whose last readers' streams have not passed yet.
class OwnOpens {
 public:
  using Clock = ServiceThread::Clock;

  OwnOpens(Device& device, Allocator& allocator, ServiceThread& worker);

  // Ends an open: unpins once the streams other than the block's home have passed. Where the block
  // is allocated still, the allocator waits for them itself when it is freed.
  void end(const OwnOpen& own, const std::vector<StreamRef>& streams) noexcept;

  // The worker's periodic.
  [[nodiscard]] std::optional<Clock::time_point> run(Clock::time_point now);

 private:
  struct Waiting {
    Block* block = nullptr;
    std::vector<std::pair<int, EventHandle>> events;
  };

  [[nodiscard]] Waiting record(const OwnOpen& own, const std::vector<StreamRef>& streams);

  Device& device_;
  Allocator& allocator_;
  ServiceThread& worker_;
  std::mutex mutex_;  // guards waiting_; nothing is called under it
  std::vector<Waiting> waiting_;
};

// Errors as Sharing::receive. Everything named outlives the block.
[[nodiscard]] std::unique_ptr<ReceivedBlock> open_own_block(const Descriptor& descriptor,
                                                            const ReceiveOptions& options,
                                                            Device& device, Producer& producer,
                                                            OwnOpens& opens, ReceiveCounts& counts);

}  // namespace limbo
