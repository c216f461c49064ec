#include "tests/bench/lent.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "tests/bench/process.h"
#include "tests/support/eventually.h"

namespace limbo::bench {

LentBlocks::LentBlocks(std::size_t count, std::size_t size_bytes, StreamRef stream)
    : size_bytes_(size_bytes), stream_(stream) {
  blocks_.reserve(count);
  for (std::size_t made = 0; made < count; ++made) {
    blocks_.push_back(allocator().allocate(size_bytes, stream));
  }
}

LentBlocks::~LentBlocks() {
  free_all();
}

Samples LentBlocks::share_all(CallTimes* calls, bool behind) {
  ShareOptions options;
  options.current_stream = stream_;
  Samples samples;
  messages_.reserve(messages_.size() + blocks_.size());
  for (std::size_t done = 0; done < blocks_.size(); ++done) {
    if (!behind && done % kOperationsAtOnce == 0) device().synchronize_stream(stream_);
    const MeasuredDevice::Listener listener(calls);
    messages_.push_back(
        timed(samples, [&] { return sharing().share(blocks_[done], size_bytes_, options, {}); }));
  }
  return samples;
}

void LentBlocks::give_all(Reader& reader) const {
  for (const Bytes& message : messages_) reader.give(message);
}

void LentBlocks::withdraw_all() {
  for (const Bytes& message : std::exchange(messages_, {})) sharing().withdraw(message);
}

void LentBlocks::free_all() {
  for (void* block : std::exchange(blocks_, {})) allocator().free(block);
}

void wait_until_all_is_back() {
  const bool back = testing::eventually(
      [] {
        (void)sharing().collect();
        return sharing().stats().exports_open == 0 && allocator().stats(0).limbo_blocks == 0;
      },
      std::chrono::seconds(60));
  if (!back) throw std::runtime_error("what was lent does not come back");
}

}  // namespace limbo::bench
