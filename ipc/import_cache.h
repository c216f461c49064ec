// The pieces of one producer that this process has mapped.
//
// A mapping outlives the claims that it was made for: opening costs 100 us. It is marked in the row
// before it is opened, so that the producer does not return the piece to the driver, and the mark is
// cleared after it has been closed.
//
// Who may open and close:
// - A receive has its mapping in the table, with a hold, before its claim is HELD: so no mapping is
//   closed that a claim which is HELD names, also where that claim is on its way to it still.
// - One lock per mapping covers the opening, so that threads which want the same piece at once open
//   it once; different pieces open side by side.
// - A mapping is closed only when no claim that names it is held or landing (`holds` is 0), and only
//   by the unmapper. It is taken out of the table first: closing can wait for kernels, and whoever
//   needs the piece meanwhile opens it anew (the driver counts opens) and never waits.
// - So a piece can have several mappings at a time: some being closed, one per device.
//
// What the mark says, which changes under the table's lock. To the piece's owner MAPPED means that the
// memory must not go back to the driver, and OPEN that whatever it has noted is opened without it: it
// may end.
//
// | mark          | there is                                                                      |
// |---------------|-------------------------------------------------------------------------------|
// | 0             | no mapping that an opening was begun for                                      |
// | MAPPED        | one; and one in the table is yet to be opened, for whatever device, or the    |
// |               | table has none: it is being closed                                            |
// | MAPPED, OPEN  | one in the table, and all there are open                                      |
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
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

// Which piece, by a message's word: nothing is believed of it until its claim stands.
struct PieceName {
  std::uint32_t index = 0;
  std::uint64_t generation = 0;

  friend auto operator<=>(const PieceName&, const PieceName&) = default;
};

// One mapping of one piece for one device.
class Mapping {
 public:
  Mapping(const PieceName& piece, int device) : piece_(piece), device_(device) {}

  // Null: it is not open yet.
  [[nodiscard]] void* base() const noexcept { return base_.load(std::memory_order_acquire); }
  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  friend class ImportCache;

  const PieceName piece_;
  const int device_;
  std::mutex opening_;  // guards the open; the one lock of a consumer under which a device call
                        // is made (other openers of this piece have to wait for it anyway)
  std::atomic<void*> base_{nullptr};
  // Guarded by the table's lock:
  bool begun_ = false;  // it is marked, and opened or about to be
  std::uint64_t size_bytes_ = 0;
  std::uint32_t holds_ = 0;  // claims that name it: about to be held, held, or not landed
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

  // The mapping of that piece for `device`, with one hold: before the claim that it is for is HELD.
  // Until it is open the mark does not say OPEN.
  [[nodiscard]] Mapping* hold(const PieceName& piece, int device);
  // Opens a mapping that is held, if it is not open; true: it was not. `piece`: what the ledger says,
  // behind the claim that stands. Throws kDeviceError when the driver refuses.
  bool open(Mapping& mapping, const PieceFacts& piece);
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
  using Key = std::pair<PieceName, int>;  // and the device
  static Key key_of(const Mapping& mapping) noexcept { return {mapping.piece_, mapping.device_}; }

  void begin(Mapping& mapping, const PieceFacts& piece);
  void end(const Mapping& mapping);
  // These with the table's lock held.
  [[nodiscard]] bool all_open(const PieceName& piece) const;
  void store_mark(const PieceName& piece);

  Device& device_;
  const RowView row_;
  const LedgerView ledger_;

  std::mutex mutex_;  // the table's; nothing is called under it
  std::map<Key, std::unique_ptr<Mapping>> table_;
  std::map<Mapping*, std::unique_ptr<Mapping>> closing_;
  std::map<PieceName, std::uint32_t> mappings_of_;  // those that were begun, closing ones too
  ImportCounts counts_;
  static std::atomic<std::uint64_t> uses_;  // orders last uses over all producers
};

}  // namespace limbo
