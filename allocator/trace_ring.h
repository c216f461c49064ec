// The last entries of a history.
//
// They lie in chunks, which views share: whoever wants all entries takes a view under the heap lock,
// and copies them when it has given the lock up. A chunk is written once, from its beginning to its
// end, always behind what a view looks at. Entries that have gone stay until all of their chunk have.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "allocator/trace_entry.h"

namespace limbo {

// Guarded by the heap lock.
class TraceRing {
  static constexpr std::size_t kChunk = 64;
  using Chunk = std::array<TraceEntry, kChunk>;
  using Chunks = std::deque<std::shared_ptr<Chunk>>;

 public:
  // The entries of one moment. Needs no lock.
  class View {
   public:
    [[nodiscard]] std::vector<TraceEntry> copy() const;

   private:
    friend class TraceRing;
    std::vector<std::shared_ptr<const Chunk>> chunks_;
    std::size_t begin_ = 0;  // entries of the first chunk that have gone
    std::size_t end_ = 0;    // where the last one ends, counted from the beginning of the first
  };

  // Throws std::bad_alloc; then nothing has changed. max_entries is at least 1.
  void push(TraceEntry entry, std::size_t max_entries);
  void shrink(std::size_t max_entries) noexcept;  // the oldest go
  void clear() noexcept;
  [[nodiscard]] View view() const;

 private:
  void drop_oldest() noexcept;

  Chunks chunks_;
  std::size_t begin_ = 0;  // as in View
  std::size_t end_ = 0;
};

}  // namespace limbo
