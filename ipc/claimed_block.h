// A claim that stands, as the receiver of a block sees it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ipc/block_behind.h"
#include "ipc/export_facts.h"
#include "ipc/fork_guard.h"
#include "ipc/holdings.h"
#include "ipc/left_to_parent.h"
#include "ipc/live_blocks.h"
#include "ipc/receive.h"
#include "ipc/release_queue.h"

namespace limbo {

class ClaimedBlock : public BlockBehind, private KeptByGraphs {
 public:
  ClaimedBlock(ReleaseQueue& releases, LiveBlocks& living, ReceiveCounts& counts)
      : releases_(releases), counts_(counts), living_(living, this) {
    owned_->job.emplace_back().streams.reserve(4);
  }
  ~ClaimedBlock() override {
    if (!released_.load()) release();
  }

  // Before fill, which cannot fail.
  void prepare(Holdings& holdings, Holding&& holding, int device) {
    living_.begin(device);
    holding.behind = shared_behind();
    held_ = {holdings, std::move(holding)};
  }
  void fill(const ExportFacts& facts, const StreamUse& home,
            std::vector<NumberBehind>&& numbers) noexcept {
    behind().set(std::move(numbers), facts.upstream_lost, home);
    key_ = {job().link->producer(), facts.piece.index, facts.piece.generation,
            facts.offset_bytes,     facts.size_bytes,  job().mapping->device()};
    data_ = static_cast<std::byte*>(job().mapping->base()) + facts.offset_bytes;
    job().streams.push_back(home);
    released_.store(false);
  }
  [[nodiscard]] ReleaseJob& job() noexcept { return owned_->job.front(); }

  [[nodiscard]] void* data() const noexcept override { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return key_.size_bytes; }
  [[nodiscard]] int device() const noexcept override { return key_.device; }
  [[nodiscard]] const ReceivedKey& key() const noexcept override { return key_; }
  [[nodiscard]] bool same_process() const noexcept override { return false; }
  [[nodiscard]] bool orphaned() const override {
    fork_guard::begin_use();
    return owned_->link_of_life->orphaned() || behind().lost();
  }

  void record_stream(StreamRef stream) override {
    fork_guard::begin_use();
    const StreamUse use = name_stream(*device_, stream);
    const bool captured = use.id == kNamedInCapture;
    std::shared_ptr<const GraphEnd> end;
    if (captured) end = releases_.end_of_graph(stream);
    const std::lock_guard lock(mutex_);
    if (released_.load()) return;
    std::vector<StreamUse>& streams = job().streams;
    const bool known = std::any_of(streams.begin(), streams.end(), [&](const StreamUse& other) {
      return other.id == use.id && other.stream.device == use.stream.device &&
             (!captured || other.stream == use.stream);
    });
    if (!known) streams.push_back(use);
    if (end) job().graphs.push_back(std::move(end));
  }

  void release() noexcept override {
    if (fork_guard::is_forked_child()) return;  // it is the parent's
    ReleaseJobs given_back;
    {
      const std::lock_guard lock(mutex_);
      if (released_.exchange(true)) {
        counts_.double_releases.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      given_back.swap(owned_->job);
    }
    // Of the one thread that releases, and before the claim may be over.
    living_.end();
    held_.end();
    releases_.release(std::move(given_back));
    counts_.releases.fetch_add(1);  // who sees it sees the release pending, or over
  }

  void belong_to(Device& device, std::shared_ptr<ProducerLink> link) {
    device_ = &device;
    owned_->link_of_life = link;
    job().link = std::move(link);
  }

 private:
  void keep_until(const std::shared_ptr<const GraphEnd>& end) override {
    const std::lock_guard lock(mutex_);
    if (!released_.load()) job().graphs.push_back(end);
  }

  struct Owned {
    std::shared_ptr<ProducerLink> link_of_life;  // outlives the release: orphaned() asks it
    ReleaseJobs job;                             // one, until it is released
  };

  ReleaseQueue& releases_;
  ReceiveCounts& counts_;
  Device* device_ = nullptr;
  ReceivedKey key_;
  void* data_ = nullptr;
  std::atomic<bool> released_{true};  // until fill
  std::mutex mutex_;                  // guards the job; a leaf
  LeftToParent<Owned> owned_;
  Living living_;
  HeldPlace held_;
};

}  // namespace limbo
