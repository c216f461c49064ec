// A claim that stands, as the receiver of a block sees it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ipc/export_facts.h"
#include "ipc/fork_guard.h"
#include "ipc/holdings.h"
#include "ipc/live_blocks.h"
#include "ipc/receive.h"
#include "ipc/release_queue.h"
#include "ipc/sharing.h"

namespace limbo {

class ClaimedBlock : public ReceivedBlock, private KeptByGraphs {
 public:
  ClaimedBlock(ReleaseQueue& releases, LiveBlocks& living, ReceiveCounts& counts)
      : releases_(releases), counts_(counts), job_(1), living_(living, this) {
    job().streams.reserve(4);
  }
  ~ClaimedBlock() override {
    if (!released_.load()) release();
  }

  // Before fill, which cannot fail.
  void prepare(HeldPlace&& held) {
    living_.begin();
    held_ = std::move(held);
  }
  void fill(const ExportFacts& facts, const StreamUse& home, std::array<SenderPoint, 2>&& sent,
            std::vector<SenderPoint>&& upstream) noexcept {
    sent_ = std::move(sent);
    upstream_ = std::move(upstream);
    upstream_lost_ = facts.upstream_lost;
    key_ = {job().link->producer(), facts.piece.index, facts.piece.generation,
            facts.offset_bytes,     facts.size_bytes,  job().mapping->device()};
    data_ = static_cast<std::byte*>(job().mapping->base()) + facts.offset_bytes;
    job().streams.push_back(home);
    released_.store(false);
  }
  [[nodiscard]] ReleaseJob& job() noexcept { return job_.front(); }

  [[nodiscard]] void* data() const noexcept override { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return key_.size_bytes; }
  [[nodiscard]] int device() const noexcept override { return key_.device; }
  [[nodiscard]] const ReceivedKey& key() const noexcept override { return key_; }
  [[nodiscard]] bool same_process() const noexcept override { return false; }
  [[nodiscard]] bool orphaned() const noexcept override {
    const auto ended = [this](const SenderPoint& point) {
      return link_of_life_->ended_before(point);
    };
    return upstream_lost_ || link_of_life_->orphaned() ||
           std::any_of(sent_.begin(), sent_.end(), ended) ||
           std::any_of(upstream_.begin(), upstream_.end(), ended);
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
    ReleaseJobs job;
    {
      const std::lock_guard lock(mutex_);
      if (released_.exchange(true)) {
        counts_.double_releases.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      job.swap(job_);
    }
    // Of the one thread that releases, and before the claim may be over.
    living_.end();
    held_.end();
    counts_.releases.fetch_add(1, std::memory_order_relaxed);
    releases_.release(std::move(job));
  }

  void belong_to(Device& device, std::shared_ptr<ProducerLink> link) {
    device_ = &device;
    link_of_life_ = link;
    job().link = std::move(link);
  }

 private:
  void keep_until(const std::shared_ptr<const GraphEnd>& end) override {
    const std::lock_guard lock(mutex_);
    if (!released_.load()) job().graphs.push_back(end);
  }
  [[nodiscard]] int kept_on() const noexcept override { return key_.device; }

  ReleaseQueue& releases_;
  ReceiveCounts& counts_;
  Device* device_ = nullptr;
  std::shared_ptr<ProducerLink> link_of_life_;  // outlives the release: orphaned() asks it
  ReceivedKey key_;
  std::array<SenderPoint, 2> sent_;    // what it came behind
  std::vector<SenderPoint> upstream_;  // and what that was behind (protocol/upstream.h)
  bool upstream_lost_ = false;
  void* data_ = nullptr;
  std::atomic<bool> released_{true};  // until fill
  std::mutex mutex_;                  // guards job_; a leaf
  ReleaseJobs job_;                   // one, until it is released
  Living living_;
  HeldPlace held_;
};

}  // namespace limbo
