// The pieces of one producer that this process has mapped.
//
// A mapping outlives the claims that it was made for: opening costs 100 us. It is marked in the row
// before it is opened, so that the producer does not return the piece to the driver, and the mark is
// cleared after it has been closed.
//
// Who may open and close:
// - One lock per mapping covers the opening, so that threads which want the same piece at once open
//   it once; different pieces open side by side.
// - A mapping is closed only when no claim that names it is held or landing (`holds` is 0), and only
//   by the unmapper. It is taken out of the table first: closing can wait for kernels, and whoever
//   needs the piece meanwhile opens it anew (the driver counts opens) and never waits.
// - So a piece can have several mappings at a time (one being closed, or one per device). The mark
//   is cleared when the last of them is gone: the count and the mark change under the table's lock.
//   Until the newest of them is open, it says OPENING.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "allocator/device/device.h"
#include "ipc/consumer_row.h"
#include "ipc/views.h"

namespace limbo {

// What the ledger says about a piece, read once.
struct PieceFacts {
  std::uint32_t index = 0;
  std::uint64_t generation = 0;
  std::uint64_t size_bytes = 0;
  Uuid uuid;
  MemoryHandle handle;
};

// One mapping of one piece for one device.
class Mapping {
 public:
  Mapping(const PieceFacts& piece, int device) : piece_(piece), device_(device) {}

  [[nodiscard]] void* base() const noexcept { return base_.load(std::memory_order_acquire); }
  [[nodiscard]] const PieceFacts& piece() const noexcept { return piece_; }
  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  friend class ImportCache;

  const PieceFacts piece_;
  const int device_;
  std::mutex opening_;  // guards the open; the one lock of a consumer under which a device call
                        // is made (other openers of this piece have to wait for it anyway)
  std::atomic<void*> base_{nullptr};
  // Guarded by the table's lock:
  std::uint32_t holds_ = 0;  // claims that name it: held, or released and not landed
  std::uint64_t last_use_ = 0;
};

struct ImportCounts {
  std::uint64_t mapped = 0;
  std::uint64_t opens = 0;
  std::uint64_t closes = 0;
};

class ImportCache {
 public:
  ImportCache(Device& device, RowView row, LedgerView ledger);

  // The piece mapped for `device`, opened if it is not, with one hold. Throws kDeviceError when
  // the driver refuses; then nothing is held, and the mark is as it was.
  [[nodiscard]] Mapping* hold(const PieceFacts& piece, int device);
  // Ends a hold. True when the mapping is idle now.
  bool let_go(Mapping* mapping) noexcept;

  // ---- the unmapper's ------------------------------------------------------------------------

  struct Idle {
    Mapping* mapping = nullptr;
    std::uint64_t size_bytes = 0;
    std::uint64_t last_use = 0;
    bool wanted = false;  // the producer wants its memory back
  };
  [[nodiscard]] std::vector<Idle> idle();
  // Closes it, if it is idle still. May wait for kernels.
  void close(Mapping* mapping);

  [[nodiscard]] ImportCounts counts();

 private:
  using Key = std::tuple<std::uint32_t, std::uint64_t, int>;  // piece, generation, device
  static Key key_of(const Mapping& mapping) noexcept {
    return {mapping.piece_.index, mapping.piece_.generation, mapping.device_};
  }

  [[nodiscard]] Mapping* find_or_make(const PieceFacts& piece, int device);
  void open(Mapping& mapping);
  void mark(const Mapping& mapping);
  void unmark(const Mapping& mapping);
  void store_mark(const Mapping& mapping, std::uint64_t flags);

  Device& device_;
  const RowView row_;
  const LedgerView ledger_;

  std::mutex mutex_;  // the table's; nothing is called under it
  std::map<Key, std::unique_ptr<Mapping>> table_;
  std::map<Mapping*, std::unique_ptr<Mapping>> closing_;
  std::map<std::uint32_t, std::uint32_t> mappings_of_;  // piece -> mappings, closing ones too
  ImportCounts counts_;
  static std::atomic<std::uint64_t> uses_;  // orders last uses over all producers
};

}  // namespace limbo
