#include "tests/tools/demo/load.h"

#include <chrono>
#include <stdexcept>

#include "tests/tools/demo/block_pattern.h"

namespace limbo::demo {
namespace {

constexpr std::size_t kLargestLent = std::size_t{16} << 20;
// Between two events of the trace: a program computes as well.
constexpr std::chrono::microseconds kPace{1500};

}  // namespace

Load::Load(Allocator& allocator, Sharing& sharing, const testing::Trace& trace,
           std::vector<Peer*> peers, std::uint64_t most_lent)
    : allocator_(allocator),
      sharing_(sharing),
      device_(allocator.device()),
      trace_(trace),
      peers_(std::move(peers)),
      most_lent_(most_lent),
      blocks_(trace.block_count) {
  for (std::uint32_t i = 0; i < trace.stream_count; ++i) {
    streams_.push_back({0, device_.create_stream(0)});
  }
  thread_ = std::thread([this] { run(); });
}

Load::~Load() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void Load::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  if (failed_) throw std::runtime_error(failure_);
}

void Load::run() {
  try {
    while (!stopping_) replay_once();
    for (const StreamRef stream : streams_) {
      device_.synchronize_stream(stream);
      device_.destroy_stream(stream);
    }
  } catch (const std::exception& error) {
    failure_ = std::string("the load: ") + error.what();
    failed_ = true;
  }
}

void Load::replay_once() {
  auto due = std::chrono::steady_clock::now();
  for (const testing::TraceEvent& event : trace_.events) {
    if (stopping_) break;
    if (event.allocate) {
      allocate(event);
    } else {
      free(blocks_[event.block]);
    }
    due += kPace;
    std::this_thread::sleep_until(due);
  }
  for (Block& block : blocks_) free(block);
}

void Load::allocate(const testing::TraceEvent& event) {
  Block& block = blocks_[event.block];
  block.stream = streams_[event.stream];
  block.size_bytes = event.size_bytes;
  block.value = ++allocations_;
  block.data = allocator_.allocate(event.size_bytes, block.stream);
  device_.fill(block.stream, block.data, block.value, block.size_bytes / sizeof(block.value));
  if (allocations_ % 2 == 0 && block.size_bytes <= kLargestLent) lend(block);
}

void Load::lend(Block& block) {
  if (most_lent_ != 0 && lent_ >= most_lent_) return;
  for (std::size_t tries = 0; tries < peers_.size(); ++tries) {
    Peer& peer = *peers_[next_peer_++ % peers_.size()];
    if (!peer.has_room()) continue;
    ShareOptions options;
    options.current_stream = block.stream;
    const Bytes descriptor =
        sharing_.share(block.data, block.size_bytes, options, to_bytes({lent_ + 1, block.value}));
    if (!peer.send(descriptor)) {
      // It was told to hold in between; nobody will open this message.
      sharing_.withdraw(descriptor);
      continue;
    }
    block.lent = true;
    ++lent_;
    return;
  }
}

void Load::free(Block& block) {
  if (block.data == nullptr) return;
  if (block.lent &&
      !holds_pattern(device_, block.stream, block.data, block.size_bytes, block.value)) {
    ++corrupted_;
  }
  allocator_.free(block.data);
  block = {};
}

}  // namespace limbo::demo
