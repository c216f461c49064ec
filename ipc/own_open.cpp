#include "ipc/own_open.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "allocator/capture_gate.h"
#include "allocator/error.h"
#include "ipc/block_behind.h"
#include "ipc/fail_points.h"
#include "ipc/fork_guard.h"
#include "ipc/left_to_parent.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kLookAgainAtOwn{50};

class OwnBlock : public BlockBehind, private KeptByGraphs {
 public:
  OwnBlock(Device& device, OwnOpens& opens, LiveBlocks& living, ReceiveCounts& counts)
      : device_(device), opens_(opens), counts_(counts), living_(living, this) {
    owned_->ending.emplace_back();
  }
  ~OwnBlock() override {
    if (!released_.load()) release();
  }

  // Before fill, which cannot fail.
  // `received_on`: and `beside_home`, where that is not the home stream.
  void prepare(const OwnOpen& own, StreamRef received_on,
               const std::optional<StreamUse>& beside_home) {
    ending().own = own;
    if (beside_home) ending().streams.push_back(*beside_home);
    std::vector<NumberBehind> numbers;
    for (const ForwardersNumber& number : own.behind) {
      numbers.push_back(
          {.point = number.point, .foreign = number.timelines, .signs = number.signs});
    }
    behind().set(std::move(numbers), own.upstream_lost, {received_on, 0});
    living_.begin(own.block.stream.device);
  }
  void hold(Holdings& holdings, Holding&& holding) {
    holding.behind = shared_behind();
    held_ = {holdings, std::move(holding)};
  }
  void fill(const OwnOpen& own, const Descriptor& descriptor) noexcept {
    home_ = own.block.stream;
    data_ = static_cast<std::byte*>(own.block.piece_base) + own.offset_bytes;
    key_ = {descriptor.producer,
            descriptor.ticket.piece_index,
            descriptor.ticket.piece_generation,
            own.offset_bytes,
            own.size_bytes,
            home_.device};
    released_.store(false);
  }

  [[nodiscard]] void* data() const noexcept override { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return key_.size_bytes; }
  [[nodiscard]] int device() const noexcept override { return key_.device; }
  [[nodiscard]] const ReceivedKey& key() const noexcept override { return key_; }
  [[nodiscard]] bool same_process() const noexcept override { return true; }
  [[nodiscard]] bool orphaned() const override {
    fork_guard::begin_use();
    return behind().lost();
  }

  void record_stream(StreamRef stream) override {
    fork_guard::begin_use();
    const StreamUse use = name_stream(device_, stream);
    std::shared_ptr<const GraphEnd> end;
    if (use.id == kNamedInCapture) end = opens_.end_of_graph(stream);
    const std::lock_guard lock(mutex_);
    if (released_.load()) return;
    if (end) ending().graphs.push_back(std::move(end));
    if (stream == home_) return;
    std::vector<StreamUse>& streams = ending().streams;
    if (std::find(streams.begin(), streams.end(), use) == streams.end()) streams.push_back(use);
  }

  void release() noexcept override {
    if (fork_guard::is_forked_child()) return;
    std::list<OwnOpens::Ending> given_back;
    {
      const std::lock_guard lock(mutex_);
      if (released_.exchange(true)) {
        counts_.double_releases.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      given_back.swap(owned_->ending);
    }
    // Of the one thread that releases, and before the pin may be undone.
    held_.end();
    living_.end();
    counts_.releases.fetch_add(1, std::memory_order_relaxed);
    opens_.end(std::move(given_back));
  }

 private:
  void keep_until(const std::shared_ptr<const GraphEnd>& end) override {
    const std::lock_guard lock(mutex_);
    if (!released_.load()) ending().graphs.push_back(end);
  }

  struct Owned {
    std::list<OwnOpens::Ending> ending;  // one, until it is released
  };
  [[nodiscard]] OwnOpens::Ending& ending() noexcept { return owned_->ending.front(); }

  Device& device_;
  OwnOpens& opens_;
  ReceiveCounts& counts_;
  StreamRef home_;
  void* data_ = nullptr;
  ReceivedKey key_;
  std::atomic<bool> released_{true};  // until fill
  std::mutex mutex_;                  // guards the ending; a leaf
  LeftToParent<Owned> owned_;
  Living living_;
  HeldPlace held_;
};

// Undoes the pin of an open that could not be finished.
class PinGuard {
 public:
  PinGuard(OwnOpens& opens, const OwnOpen& own) : opens_(opens), own_(own) {}
  PinGuard(const PinGuard&) = delete;
  PinGuard& operator=(const PinGuard&) = delete;
  ~PinGuard() {
    if (armed_) opens_.give_up(own_);
  }
  void disarm() noexcept { armed_ = false; }

 private:
  OwnOpens& opens_;
  const OwnOpen& own_;
  bool armed_ = true;
};

}  // namespace

OwnOpens::OwnOpens(Device& device, Allocator& allocator, ReleaseQueue& releases,
                   ServiceThread& worker, ServiceThread& unmapper)
    : device_(device),
      allocator_(allocator),
      releases_(releases),
      worker_(worker),
      unmapper_(unmapper) {}

void OwnOpens::give_up(const OwnOpen& own) noexcept {
  try {
    allocator_.unpin(own.block.block);
  } catch (const std::exception& failure) {
    // Never too early: the block stays in use.
    std::fprintf(stderr, "limbo: a block that this process sent itself stays in use: %s\n",
                 failure.what());
  }
}

std::shared_ptr<const GraphEnd> OwnOpens::end_of_graph(StreamRef stream) {
  return device_.is_capturing(stream) ? releases_.end_of_graph(stream) : nullptr;
}

void OwnOpens::end(std::list<Ending> one) noexcept {
  go_on(try_to_end(one.front()), one, nullptr);
}

// `looking`: whose periodic this is; it looks again by itself.
void OwnOpens::go_on(Next next, std::list<Ending>& one, const ServiceThread* looking) noexcept {
  if (next == Next::kOver) return;
  {
    const std::lock_guard lock(mutex_);
    std::list<Ending>& where = next == Next::kNever   ? kept_
                               : next == Next::kAgain ? waiting_
                                                      : idle_;
    where.splice(where.end(), one);
  }
  if (next == Next::kNever) {
    if (!warned_.exchange(true)) {
      std::fputs(
          "limbo: a block that this process sent itself stays in use (several of its GPUs report a "
          "lost context, and what one of them runs may run on). Further ones are not reported.\n",
          stderr);
    }
    return;
  }
  ServiceThread& thread = next == Next::kAgain ? worker_ : unmapper_;
  if (&thread != looking) thread.nudge();
}

// Never too early: what cannot be asked is asked again.
OwnOpens::Next OwnOpens::try_to_end(Ending& ending) noexcept {
  try {
    while (!ending.streams.empty()) {
      const Told told = tell(ending, ending.streams.back());
      if (told == Told::kStreamGone) return Next::kWhenIdle;
      if (told == Told::kLater) return Next::kAgain;
      if (told == Told::kRunsOn) return Next::kNever;
      ending.streams.pop_back();
    }
  } catch (const std::exception&) {
    return Next::kAgain;
  }
  if (any_lives(ending.graphs)) return Next::kAgain;
  give_up(ending.own);
  return Next::kOver;
}

// Tells the allocator of the stream.
OwnOpens::Told OwnOpens::tell(Ending& ending, const StreamUse& use) {
  const StreamRef stream = use.stream;
  const auto lost = [&] { return releases_.is_lost(stream.device, true); };
  const auto told_of_lost = [&] {
    return releases_.may_run_on(stream.device) ? Told::kRunsOn : Told::kTold;
  };
  if (lost()) return told_of_lost();
  ending.graphs.reserve(ending.graphs.size() + 1);
  try {
    const StreamQuestion question(device_);
    if (device_.is_capturing(stream)) {
      if (auto end = end_of_graph(stream)) ending.graphs.push_back(std::move(end));
    } else if (!question) {
      return Told::kLater;
    } else if (use.id == kNamedInCapture || device_.stream_id(stream) != use.id) {
      return Told::kStreamGone;
    }
  } catch (const Error& failure) {
    if (failure.code() != ErrorCode::kDeviceError) throw;
    return lost() ? told_of_lost() : Told::kStreamGone;
  }
  (void)allocator_.record_stream(ending.own.block.data, stream);
  return Told::kTold;
}

std::optional<OwnOpens::Clock::time_point> OwnOpens::run(Clock::time_point now) {
  std::list<Ending> looked;
  {
    const std::lock_guard lock(mutex_);
    looked.swap(waiting_);
  }
  while (!looked.empty()) {
    std::list<Ending> one;
    one.splice(one.begin(), looked, looked.begin());
    go_on(try_to_end(one.front()), one, &worker_);
  }
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  return now + kLookAgainAtOwn;
}

std::optional<OwnOpens::Clock::time_point> OwnOpens::run_when_idle(Clock::time_point now) {
  std::list<Ending> looked;
  {
    const std::lock_guard lock(mutex_);
    looked.swap(idle_);
  }
  while (!looked.empty()) {
    std::list<Ending> one;
    one.splice(one.begin(), looked, looked.begin());
    Ending& ending = one.front();
    const int device = ending.streams.back().stream.device;
    Next next = Next::kWhenIdle;
    try {
      device_.synchronize_device(device);
      ending.streams.pop_back();
      next = try_to_end(ending);
    } catch (const std::exception&) {
      if (releases_.is_lost(device, true)) next = try_to_end(ending);
    }
    go_on(next, one, &unmapper_);
  }
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::nullopt;
  return now + kLookAgainAtOwn;
}

std::unique_ptr<ReceivedBlock> open_own_block(const Descriptor& descriptor,
                                              const ReceiveOptions& options, Device& device,
                                              Producer& producer, OwnOpens& opens,
                                              LiveBlocks& living, ReceiveCounts& counts) {
  const ExportTicket& ticket = descriptor.ticket;
  DeclinedUnlessClaimed promise(
      [&] { producer.decline_own(ticket.export_index, ticket.generation); });
  LIMBO_FAIL_POINT("receive.before_claim");
  auto block = std::make_unique<OwnBlock>(device, opens, living, counts);
  const OwnOpen own = producer.open_own(ticket.export_index, ticket.generation);
  promise.claimed();
  PinGuard guard(opens, own);
  const StreamRef home = own.block.stream;
  if (own.offset_bytes != ticket.offset_bytes || own.size_bytes != ticket.size_bytes) {
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
  const bool only_home = stream == home && own.points[0].owner == 0 && own.points[1].number == 0;
  std::optional<StreamUse> used;  // beside the home stream
  if (!only_home) {
    const StreamUse receiving = receiving_stream(device, home.device, options);
    if (stream != home) used = receiving;
    const StreamQuestion question(device, StreamQuestion::Patient{});
    refuse_captured_receiver(device, stream);
    producer.wait_own(stream, own);
  }
  block->prepare(own, stream, used);
  block->hold(opens.holdings(),
              {.data = static_cast<const std::byte*>(own.block.piece_base) + own.offset_bytes,
               .size_bytes = own.size_bytes,
               .received_on = stream,
               .stream_id = 0,
               .link = nullptr,
               .claim = {},
               .ticket = {},
               .own = own,
               .behind = nullptr});
  guard.disarm();
  block->fill(own, descriptor);
  counts.receives.fetch_add(1, std::memory_order_relaxed);
  return block;
}

}  // namespace limbo
