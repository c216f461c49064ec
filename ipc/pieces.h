// The pieces that this process has lent: their rows in the ledger.
//
// | word of a piece   | from         | to                   | when                          |
// |-------------------|--------------|----------------------|-------------------------------|
// | generation, flags | free         | in use               | a block of it is shared first |
// |                   | in use       | in use, unmap wanted | the allocator wants it back   |
// |                   | unmap wanted | in use               | a block of it is shared again |
// |                   | in use       | generation + 1, free | it went back to the driver    |
//
// Only the producer writes it, under the collect lock, by release; fields before the word. It dies
// with its producer. Consumers look for the flag when they have idle mappings.
//
// | word of a mark (row)   | from       | to         | who      | order                        |
// |------------------------|------------|------------|----------|------------------------------|
// | generation, mapped and | not mapped | OPENING    | consumer | release, before it opens     |
// | open bits              | OPENING    | MAPPED     | consumer | release, after it has opened |
// |                        | either     | not mapped | consumer | release, after it has closed |
//
// OPENING keeps the piece as MAPPED does. A producer that ends waits for MAPPED: a first open after
// its end fails.
//
// A consumer marks only while it holds a claim on the piece, so while a pin keeps the piece; hence
// after the last pin no new mark can come. A death leaves the mark to the sweep.
//
// Guarded by the collect lock.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "allocator/device/device.h"
#include "ipc/views.h"

namespace limbo {

struct PieceRecord {
  std::uint64_t piece_id = 0;  // the allocator's
  std::uint64_t generation = 0;
  std::uint64_t size_bytes = 0;
  int device = 0;
  Uuid device_uuid;
  bool in_use = false;
  bool unmap_wanted = false;
  bool refused = false;  // the allocator was told no, and not yet that it may ask again
};

class Pieces {
 public:
  explicit Pieces(LedgerView ledger) : ledger_(ledger) {}

  [[nodiscard]] std::optional<std::uint32_t> find(std::uint64_t piece_id) const;
  // Throws kLedgerFull, naming the option.
  std::uint32_t insert(std::uint64_t piece_id, int device, const Uuid& device_uuid,
                       std::uint64_t size_bytes, const MemoryHandle& handle);
  void set_unmap_wanted(std::uint32_t index, bool wanted) noexcept;
  void set_refused(std::uint32_t index, bool refused) noexcept {
    records_[index].refused = refused;
  }
  // The row is free for another piece; the generation tells old mappings apart.
  void retire(std::uint32_t index) noexcept;

  [[nodiscard]] const PieceRecord& record(std::uint32_t index) const { return records_[index]; }
  [[nodiscard]] std::uint32_t touched() const noexcept {
    return static_cast<std::uint32_t>(records_.size());
  }

 private:
  void store_word(std::uint32_t index) noexcept;

  LedgerView ledger_;
  std::vector<PieceRecord> records_;
  std::vector<std::uint32_t> free_;  // has room for all records
  std::unordered_map<std::uint64_t, std::uint32_t> index_of_;
};

}  // namespace limbo
