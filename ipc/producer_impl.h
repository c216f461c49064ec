// The insides of Producer, shared by its sources.
#pragma once

#include <algorithm>
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ipc/collect_lock.h"
#include "ipc/joining_streams.h"
#include "ipc/leases.h"
#include "ipc/ledger_exports.h"
#include "ipc/pieces.h"
#include "ipc/producer.h"
#include "ipc/protocol/note.h"
#include "ipc/sending_streams.h"
#include "ipc/shared_memory.h"
#include "ipc/timelines.h"
#include "ipc/views.h"

namespace limbo {

struct Producer::Impl {
  Impl(Device& device, Allocator& allocator, Incarnation incarnation, Capacities capacities,
       std::int64_t scans_per_second);
  ~Impl();

  // Holds the collect lock while it lives. Leaving runs the passes that others have asked for,
  // unlocks, and then unpins what is over.
  class Hold {
   public:
    explicit Hold(Impl& owner);  // waits
    Hold(Impl& owner, std::adopt_lock_t);
    ~Hold() { leave(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // Returns how many pins were undone. Idempotent.
    std::uint64_t leave();
    // For the reaper, which makes no device call: runs a few passes and unlocks. Pins stay chained
    // until the next holder leaves, and others may have asked for a pass: a collect has to follow.
    void leave_unpins_to_the_next();

   private:
    // Unlocks, and undoes pins; adds how many. True: a pass is owed still.
    [[nodiscard]] bool leave_once(std::uint64_t& undone);
    Impl& owner_;
    bool held_ = true;
  };

  // ---- under the lock (producer_collect.cpp)
  void run_pass(protocol::Look look);
  void absorb_let_go();
  [[nodiscard]] Lease* find_lease(std::uint32_t lease_number);
  // Whose rows a pass reads: all.
  [[nodiscard]] std::span<const std::unique_ptr<Lease>> listed() const noexcept {
    return {leases.data(), leases.size() - std::min(leases.size(), listed_late)};
  }
  [[nodiscard]] bool is_mapped(std::uint32_t piece_index) const;
  [[nodiscard]] Forwarder* find_forwarder(std::uint32_t lease_number);
  // Nobody but a forwarder that will not name them knows of these.
  void withdraw_unheard(Forwarder& forwarder);
  // The new export. `spare`: a list of one, which is taken where the lease has not forwarded yet; it
  // brings along a place in `unheard` in any case.
  // `also`: room for what the request names.
  std::uint32_t forward(std::uint32_t lease_number, const ForwardRequest& request,
                        std::list<Forwarder>& spare, std::vector<NamedNumber>& also);
  // Finds the forwarders of what a request names.
  void find_named(const ForwardRequest& request, std::vector<NamedNumber>& also);
  // All numbers of forwarders that an export is behind, whether they have come or not.
  [[nodiscard]] std::vector<ForwardersNumber> numbers_behind(std::uint32_t index);
  [[nodiscard]] std::uint64_t wanted_back_bytes(const Lease& lease, int device_index) const;

  // ---- without the lock
  // Sweeps the lease; `quiet`: none of its GPU work runs any more, or the caller vouches for that.
  void end_lease(std::uint32_t lease_number, bool quiet);
  bool collect();
  // Looks at every used group of every lease, and waits, at most `at_most`, for the lock and for
  // those who are unpinning. True when anything was unpinned meanwhile.
  bool look_thoroughly(std::chrono::milliseconds at_most);
  // Unpins both chains; returns how many pins were undone.
  std::uint64_t finish(ExportLink over, Block* let_go);
  void check_request(const void* data, std::size_t size_bytes, const ShareOptions& options) const;
  void check_devices(const SendingStreams& behind);
  void refuse_captured(const SendingStreams& behind);
  [[nodiscard]] bool can_order(int device_index);
  // The slot and what the ledger says of its piece.
  struct Reserved {
    std::uint32_t export_index = 0;
    std::uint64_t generation = 0;
    std::uint32_t piece_index = 0;
    PieceRecord piece;
  };
  // For a pinned block, which stays the caller's; the rest of share. `received`: by what it came back.
  [[nodiscard]] ExportTicket share_pinned(const void* data, std::size_t size_bytes,
                                          const ShareOptions& options, const BlockView& block,
                                          const SendingStreams& behind,
                                          const OwnOpen* received = nullptr);
  // An export was reserved of what came back here: it names what that is behind.
  void send_on_own(std::uint32_t index, const OwnOpen& own);
  void enqueue_numbers(ExportRecord& record, const SendingStreams& behind);
  [[nodiscard]] Reserved reserve(const void* data, std::size_t size_bytes, const BlockView& block,
                                 const ShareOptions& options, const SendingStreams& behind);

  Device& device;
  Allocator& allocator;
  const Incarnation incarnation;
  const Capacities capacities;
  SharedMemory ledger_memory;
  const LedgerView ledger;
  Timelines timelines;     // has locks of its own
  JoiningStreams joining;  // has one of its own

  CollectLock lock;  // guards what follows
  std::list<Forwarder> forwarders;
  Exports exports;
  Pieces pieces;
  std::vector<std::unique_ptr<Lease>> leases;
  std::size_t listed_late = 0;    // leases that a mistake lists only after the next pass
  Block* let_go_chain = nullptr;  // taken from the allocator by this holder, to be unpinned
  bool let_go_again = false;      // more may have been let go since
  std::uint64_t leases_swept = 0;
  std::uint64_t claims_swept = 0;
  // (end of what the lock guards)

  std::atomic<std::uint64_t> next_lease_number{0};
  std::atomic<std::uint64_t> sends{0};
  std::atomic<std::uint64_t> forwards{0};
  // Holders that have unlocked and not finished unpinning; what was unpinned since the start.
  std::atomic<std::uint64_t> unpins_pending{0};
  std::atomic<std::uint64_t> unpinned{0};
  std::atomic<bool> context_lost{false};
  // Devices (below 64) that are known to have stream memory operations, a bit each.
  std::atomic<std::uint64_t> able_devices{0};
  const std::int64_t row_scans_per_second;
};

// A number is never given to a second lease: timelines are named by it, as number + 1 in 32 bits,
// where 0 is the producer. Throws kLedgerFull when there is none left.
[[nodiscard]] std::uint32_t take_lease_number(std::atomic<std::uint64_t>& next);

// What an export's row says: as its descriptor does, and what is behind that.
[[nodiscard]] protocol::ExportFields fields_of(const ExportTicket& ticket,
                                               const protocol::UpstreamWord& upstream);

}  // namespace limbo
