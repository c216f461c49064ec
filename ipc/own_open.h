// A descriptor opened in the process that made it: the block itself, by the pin count alone.
//
// No driver call where the receiving stream is the block's home; on another stream it waits there
// for the send's number, and the block, once its owner has freed it, is reused only when that
// stream has passed what it had queued at the release, and when no graph uses it any more.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "allocator/allocator.h"
#include "ipc/holdings.h"
#include "ipc/live_blocks.h"
#include "ipc/producer.h"
#include "ipc/receive.h"
#include "ipc/release_queue.h"
#include "ipc/service_thread.h"

namespace limbo {

// Ends opens: the pins of those that graphs use wait here.
class OwnOpens {
 public:
  using Clock = ServiceThread::Clock;

  // What an open waits for before it is over.
  struct Ending {
    OwnOpen own;
    std::vector<StreamUse> streams;  // used it, and the allocator was not told: not the home
    GraphEnds graphs;
  };

  OwnOpens(Device& device, Allocator& allocator, ReleaseQueue& releases, ServiceThread& worker,
           ServiceThread& unmapper);

  // `one`: a list of one, whose node was made with the open. The allocator is told of the streams: it
  // reuses the block, once its owner has freed it, when they have passed what they had queued. Unpins,
  // at once where no graph uses the block; a stream that is being captured means one. For a stream
  // that has been destroyed, its device has to be idle. What a lost device had queued is over, unless
  // others are lost too (ReleaseQueue::may_run_on): then the block stays in use.
  void end(std::list<Ending> one) noexcept;
  // Undoes the pin of an open that nobody has used.
  void give_up(const OwnOpen& own) noexcept;
  // The graph that `stream` is being captured into; null where it is not. Throws kDeviceError.
  [[nodiscard]] std::shared_ptr<const GraphEnd> end_of_graph(StreamRef stream);

  // What this process has opened of its own, by address.
  [[nodiscard]] Holdings& holdings() noexcept { return holdings_; }

  // The worker's periodic.
  [[nodiscard]] std::optional<Clock::time_point> run(Clock::time_point now);
  // The unmapper's: ends what waits for an idle device.
  [[nodiscard]] std::optional<Clock::time_point> run_when_idle(Clock::time_point now);

 private:
  enum class Next {
    kOver,
    kAgain,     // a graph uses the block, or the device could not be asked (yet)
    kWhenIdle,  // the last of its streams has gone: what that had queued is waited for with its device
    kNever,     // nothing tells when a lost device's work is over
  };
  [[nodiscard]] Next try_to_end(Ending& ending) noexcept;
  enum class Told {
    kTold,
    kLater,       // somebody begins a capture just now
    kStreamGone,  // its handle may be another's
    kRunsOn,      // of a lost device, whose work may not be over
  };
  [[nodiscard]] Told tell(Ending& ending, const StreamUse& use);
  void go_on(Next next, std::list<Ending>& one, const ServiceThread* looking) noexcept;

  Device& device_;
  Allocator& allocator_;
  ReleaseQueue& releases_;
  ServiceThread& worker_;
  ServiceThread& unmapper_;
  Holdings holdings_;
  std::atomic<bool> warned_{false};
  std::mutex mutex_;  // guards what follows; nothing is called under it
  std::list<Ending> waiting_;
  std::list<Ending> idle_;
  std::list<Ending> kept_;  // for ever
};

// Errors as Sharing::receive. Everything named outlives the block.
[[nodiscard]] std::unique_ptr<ReceivedBlock> open_own_block(const Descriptor& descriptor,
                                                            const ReceiveOptions& options,
                                                            Device& device, Producer& producer,
                                                            OwnOpens& opens, LiveBlocks& living,
                                                            ReceiveCounts& counts);

}  // namespace limbo
