#include "ipc/own_open.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "allocator/error.h"
#include "ipc/fork_guard.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kLookAgainAtOwn{5};

class OwnBlock : public ReceivedBlock {
 public:
  OwnBlock(OwnOpens& opens, ReceiveCounts& counts) : opens_(opens), counts_(counts) {}
  ~OwnBlock() override {
    if (!released_.load()) release();
  }

  void fill(const OwnOpen& own, const Descriptor& descriptor) noexcept {
    own_ = own;
    key_ = {descriptor.producer,
            descriptor.ticket.piece_index,
            descriptor.ticket.piece_generation,
            own.offset_bytes,
            own.size_bytes,
            own.block.stream.device};
    released_.store(false);
  }

  [[nodiscard]] void* data() const noexcept override {
    return static_cast<std::byte*>(own_.block.piece_base) + own_.offset_bytes;
  }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return key_.size_bytes; }
  [[nodiscard]] int device() const noexcept override { return key_.device; }
  [[nodiscard]] const ReceivedKey& key() const noexcept override { return key_; }
  [[nodiscard]] bool same_process() const noexcept override { return true; }
  [[nodiscard]] bool orphaned() const noexcept override { return false; }

  void record_stream(StreamRef stream) override {
    fork_guard::begin_use();
    if (stream == own_.block.stream) return;
    const std::lock_guard lock(mutex_);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
      streams_.push_back(stream);
    }
  }

  void release() noexcept override {
    if (fork_guard::is_forked_child()) return;
    std::vector<StreamRef> streams;
    {
      const std::lock_guard lock(mutex_);
      if (released_.exchange(true)) {
        counts_.double_releases.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      streams = std::move(streams_);
    }
    counts_.releases.fetch_add(1, std::memory_order_relaxed);
    opens_.end(own_, streams);
  }

 private:
  OwnOpens& opens_;
  ReceiveCounts& counts_;
  OwnOpen own_;
  ReceivedKey key_;
  std::atomic<bool> released_{true};  // until fill
  std::mutex mutex_;                  // guards streams_; a leaf
  std::vector<StreamRef> streams_;
};

// Undoes the pin of an open that could not be finished.
class PinGuard {
 public:
  PinGuard(OwnOpens& opens, const OwnOpen& own) : opens_(opens), own_(own) {}
  PinGuard(const PinGuard&) = delete;
  PinGuard& operator=(const PinGuard&) = delete;
  ~PinGuard() {
    if (armed_) opens_.end(own_, {});
  }
  void disarm() noexcept { armed_ = false; }

 private:
  OwnOpens& opens_;
  const OwnOpen& own_;
  bool armed_ = true;
};

}  // namespace

OwnOpens::OwnOpens(Device& device, Allocator& allocator, ServiceThread& worker)
    : device_(device), allocator_(allocator), worker_(worker) {}

void OwnOpens::end(const OwnOpen& own, const std::vector<StreamRef>& streams) noexcept {
  Waiting waiting;
  try {
    waiting = record(own, streams);
    if (waiting.events.empty()) {
      allocator_.unpin(own.block.block);
      return;
    }
  } catch (const std::exception& failure) {
    // Never too early: the block stays in limbo.
    std::fprintf(stderr, "limbo: a block that this process sent itself stays in use: %s\n",
                 failure.what());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(waiting));
  }
  worker_.nudge();
}

// The events that the unpin has to wait for.
OwnOpens::Waiting OwnOpens::record(const OwnOpen& own, const std::vector<StreamRef>& streams) {
  Waiting waiting{own.block.block, {}};
  for (const StreamRef& stream : streams) {
    if (allocator_.record_stream(own.block.data, stream)) continue;
    if (device_.is_capturing(stream)) {
      throw Error(ErrorCode::kNotAvailableYet, "A stream that used it is being captured.");
    }
    waiting.events.emplace_back(stream.device, device_.create_event(stream.device));
    device_.record_event(stream, waiting.events.back().second);
  }
  return waiting;
}

std::optional<OwnOpens::Clock::time_point> OwnOpens::run(Clock::time_point now) {
  std::vector<Waiting> looked;
  {
    const std::lock_guard lock(mutex_);
    looked.swap(waiting_);
  }
  std::vector<Waiting> left;
  for (Waiting& waiting : looked) {
    try {
      const bool passed = std::all_of(
          waiting.events.begin(), waiting.events.end(),
          [&](const auto& event) { return device_.query_event(event.first, event.second); });
      if (!passed) {
        left.push_back(std::move(waiting));
        continue;
      }
      for (const auto& [device, event] : waiting.events) device_.destroy_event(device, event);
    } catch (const Error&) {
      continue;  // the device is broken: the block stays in limbo, never too early
    }
    allocator_.unpin(waiting.block);
  }
  const std::lock_guard lock(mutex_);
  waiting_.insert(waiting_.end(), left.begin(), left.end());
  if (waiting_.empty()) return std::nullopt;
  return now + kLookAgainAtOwn;
}

std::unique_ptr<ReceivedBlock> open_own_block(const Descriptor& descriptor,
                                              const ReceiveOptions& options, Device& device,
                                              Producer& producer, OwnOpens& opens,
                                              ReceiveCounts& counts) {
  auto block = std::make_unique<OwnBlock>(opens, counts);
  const OwnOpen own =
      producer.open_own(descriptor.ticket.export_index, descriptor.ticket.generation);
  PinGuard guard(opens, own);
  const StreamRef home = own.block.stream;
  if (own.offset_bytes != descriptor.ticket.offset_bytes ||
      own.size_bytes != descriptor.ticket.size_bytes) {
    throw Error(ErrorCode::kBadDescriptor, "The message does not match its sender's ledger.",
                "Pass descriptors on exactly as share() returned them.");
  }
  if (options.device && *options.device != home.device) {
    throw Error(ErrorCode::kBadArgument,
                "The message is of this very process, and its memory is on device " +
                    std::to_string(home.device) + ", not on device " +
                    std::to_string(*options.device) + ".",
                "Open it on device " + std::to_string(home.device) + " and copy it.");
  }
  const StreamRef stream{
      home.device, options.current_stream ? options.current_stream(home.device) : StreamHandle{}};
  // What the home stream itself had queued comes before its later work anyway.
  const bool only_home = stream == home && own.points[1].number == 0;
  if (!only_home) {
    (void)receiving_stream(device, home.device, options);
    for (const TimelinePoint& point : own.points) {
      if (point.number != 0) producer.wait_own(stream, point);
    }
  }
  block->fill(own, descriptor);
  guard.disarm();
  block->record_stream(stream);
  counts.receives.fetch_add(1, std::memory_order_relaxed);
  return block;
}

}  // namespace limbo
