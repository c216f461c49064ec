#include "allocator/trace_ring.h"

#include <utility>

namespace limbo {

std::vector<TraceEntry> TraceRing::View::copy() const {
  std::vector<TraceEntry> entries;
  entries.reserve(end_ - begin_);
  for (std::size_t index = begin_; index < end_; ++index) {
    entries.push_back((*chunks_[index / kChunk])[index % kChunk]);
  }
  return entries;
}

TraceRing::View TraceRing::view() const {
  View seen;
  seen.chunks_.assign(chunks_.begin(), chunks_.end());
  seen.begin_ = begin_;
  seen.end_ = end_;
  return seen;
}

void TraceRing::push(TraceEntry entry, std::size_t max_entries) {
  if (end_ == chunks_.size() * kChunk) chunks_.push_back(std::make_shared<Chunk>());
  (*chunks_.back())[end_ % kChunk] = std::move(entry);
  ++end_;
  shrink(max_entries);
}

void TraceRing::shrink(std::size_t max_entries) noexcept {
  while (end_ - begin_ > max_entries) drop_oldest();
}

void TraceRing::clear() noexcept {
  chunks_.clear();
  begin_ = end_ = 0;
}

void TraceRing::drop_oldest() noexcept {
  if (++begin_ < kChunk) return;
  chunks_.pop_front();
  begin_ -= kChunk;
  end_ -= kChunk;
}

}  // namespace limbo
