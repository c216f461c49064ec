// The producer's load: a recorded trace, replayed again and again, with some of its blocks lent.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "allocator/allocator.h"
#include "ipc/sharing.h"
#include "tests/support/trace.h"
#include "tests/tools/demo/peer.h"

namespace limbo::demo {

// Replays the trace on a thread of its own until stop. Every second allocation of up to 16 MiB is
// lent to one of the peers in turn, if one has room; the owner frees each block when the trace
// does, whoever still reads it.
class Load {
 public:
  // `most_lent` 0: no limit.
  Load(Allocator& allocator, Sharing& sharing, const testing::Trace& trace,
       std::vector<Peer*> peers, std::uint64_t most_lent);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Frees everything that is live. Throws what went wrong on the load's thread.
  void stop();

  [[nodiscard]] std::uint64_t lent() const noexcept { return lent_; }
  // Blocks that did not hold their own pattern when the owner freed them.
  [[nodiscard]] std::uint64_t corrupted() const noexcept { return corrupted_; }
  // Only after stop.
  [[nodiscard]] std::uint32_t allocations() const noexcept { return allocations_; }
  [[nodiscard]] bool failed() const noexcept { return failed_; }

 private:
  struct Block {
    void* data = nullptr;
    std::size_t size_bytes = 0;
    std::uint32_t value = 0;
    StreamRef stream;
    bool lent = false;
  };

  void run();
  void replay_once();
  void allocate(const testing::TraceEvent& event);
  void free(Block& block);
  void lend(Block& block);

  Allocator& allocator_;
  Sharing& sharing_;
  Device& device_;
  const testing::Trace& trace_;
  std::vector<Peer*> peers_;
  std::uint64_t most_lent_;

  std::vector<StreamRef> streams_;  // by the trace's number
  std::vector<Block> blocks_;       // by the trace's number
  std::uint32_t allocations_ = 0;   // also each block's value
  std::size_t next_peer_ = 0;

  std::atomic<std::uint64_t> lent_{0};
  std::atomic<std::uint64_t> corrupted_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  std::string failure_;  // written before failed_
  std::thread thread_;
};

}  // namespace limbo::demo
