// The producer's side of sharing: exports, leases, collecting, sweeping. Knows the allocator (pins)
// and the shared tables; knows no sockets (channel.h feeds it) and no consumer-side code.
//
// Locks: `collect lock` (collect_lock.h) guards every private record: exports, mirrors, leases,
// pieces. Nothing is unpinned and nothing is called back while it is held; exports that are over
// are chained and unpinned after the unlock.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "allocator/allocator.h"
#include "allocator/lending.h"
#include "ipc/forwarders.h"
#include "ipc/layout.h"
#include "ipc/ledger_options.h"
#include "ipc/process_identity.h"
#include "ipc/protocol/claim.h"
#include "ipc/sharing.h"
#include "ipc/stream_use.h"

namespace limbo {

// What goes into a descriptor, besides the sender's address.
struct ExportTicket {
  std::uint32_t export_index = 0;
  std::uint64_t generation = 0;
  std::uint32_t piece_index = 0;
  std::uint64_t piece_generation = 0;
  std::uint64_t piece_size_bytes = 0;
  std::uint32_t piece_count = 1;
  std::uint64_t offset_bytes = 0;  // of the shared range from the first piece's base
  std::uint64_t size_bytes = 0;
  TimelinePoint points[2];
  Uuid device_uuid;
};

// Who connects, as the channel knows it. The producer takes no ownership of descriptors: whoever
// watches them (the reaper) reports with lease_gone and lease_quiet.
struct LeasePeer {
  ProcessIdentity identity;
  bool late_life_line = false;
};

// What a consumer is handed. The descriptors stay the producer's; the channel sends duplicates.
struct LeaseGrant {
  std::uint32_t lease_number = 0;
  Capacities capacities;
  int ledger_fd = -1;         // read-only for the consumer
  int timelines_fd = -1;      // writable
  int row_fd = -1;            // writable
  int own_timelines_fd = -1;  // writable: those that this consumer advances when it forwards
};

// What a consumer asks for that sends on what it holds.
struct ForwardRequest {
  std::uint32_t slot = 0;  // where its claim is
  protocol::ClaimTarget held;
  std::uint64_t offset_bytes = 0;  // of the new range from the piece's base
  std::uint64_t size_bytes = 0;
  std::uint32_t consumers = 1;
  std::chrono::milliseconds time_limit{0};  // as it wishes: that of what it holds, at most, is kept
  TimelinePoint points[2];                  // of its own timelines
  // What the memory is behind beside that, where it came by further messages, which the asker may have
  // given back: numbers of forwarders that have not come, and whether anything will never come.
  std::vector<TimelinePoint> also_behind;
  bool also_lost = false;
};

// A block of this process, opened in this process.
struct OwnOpen {
  BlockView block;                 // pinned once more; give it back by unpin
  std::uint64_t offset_bytes = 0;  // of the shared range from the piece's base
  std::uint64_t size_bytes = 0;
  TimelinePoint points[2];
  std::shared_ptr<LeaseTimelines>
      forwarder;                         // whose numbers these are, if a consumer has sent it on
  std::vector<ForwardersNumber> behind;  // those, and what was on its way before it was sent on
  bool upstream_lost = false;            // or will never come
};

// What somebody is told whose claim does not stand: throws kGone, kWithdrawn or kExpired.
[[noreturn]] void throw_refused(protocol::ClaimVerdict verdict);

// What a send may be asked for, whoever owns the memory: throws kBadArgument.
void check_share_options(const void* data, std::size_t size_bytes, const ShareOptions& options);

class Producer : public Lender {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes the memfds; registers the timelines with the device at the first share. `scans_per_second`:
  // how many groups of one row are scanned at most. Throws kBadArgument for capacities that the tables
  // cannot have.
  Producer(Device& device, Allocator& allocator, Incarnation incarnation, Capacities capacities,
           std::int64_t scans_per_second = scans_per_second_from_options());
  // Gives up every export and unpins its block: only where nobody can be reading any more. A
  // process keeps its producer for ever.
  ~Producer() override;

  // Errors: kBadArgument (size 0, range outside of the block, time limit below 0, consumers out of
  // range), kNotAvailableYet (a stream that is being captured), kNotLendable, kLedgerFull,
  // kDeviceError. After an error nothing is pinned and nothing is open.

  [[nodiscard]] ExportTicket share(const void* data, std::size_t size_bytes,
                                   const ShareOptions& options);
  // One pin more on a block that is open here. Locks nothing; calls nobody back.
  void pin_own(const OwnOpen& own);
  // The same for a received block of this process itself, whether its owner has freed it meanwhile or
  // not. pin_own was called for it, and that pin is taken over. `received_on`: the stream that
  // received it; `also_on`: those that have received it by further messages.
  [[nodiscard]] ExportTicket share_received(const OwnOpen& own, const void* data,
                                            std::size_t size_bytes, const ShareOptions& options,
                                            StreamRef received_on,
                                            std::span<const StreamUse> also_on = {});
  // False when the export is over already, or another generation.
  bool withdraw(std::uint32_t export_index, std::uint64_t generation);

  // Throws kGone, kWithdrawn or kExpired, as a consumer would meet. Takes one off in flight, once.
  [[nodiscard]] OwnOpen open_own(std::uint32_t export_index, std::uint64_t generation);
  // This process itself will not open it. Takes one off in flight, once.
  void decline_own(std::uint32_t export_index, std::uint64_t generation);
  // Makes `stream` wait for a number of this process's own timelines.
  void wait_own(StreamRef stream, const TimelinePoint& point);
  // Makes `stream` wait for what was opened: for numbers of this process, or of who has forwarded it.
  void wait_own(StreamRef stream, const OwnOpen& own);

  // ---- leases (called by the channel and the reaper) --------------------------------------
  // Makes no device call: pins that fall due meanwhile wait for the next collect.
  [[nodiscard]] LeaseGrant add_lease(const LeasePeer& peer);
  // Its process has ended: quarantine, `why` for the holder list. Idempotent.
  void lease_gone(std::uint32_t lease_number, const std::string& why);
  // None of its GPU work runs any more: sweep, once. The lease's number is never used again. Withdraws
  // what was forwarded for it and was not heard of.
  void lease_quiet(std::uint32_t lease_number);
  // The same by somebody's word, while it is not known: what waits for its GPU has to be completed
  // still, until lease_quiet is called as well.
  void lease_forced(std::uint32_t lease_number);
  // The consumer says that nothing of its lease is left. True when the row bears that out: then the
  // lease is over. Else it stays until its process has ended; nothing is taken back by a word.
  [[nodiscard]] bool lease_left(std::uint32_t lease_number);
  // The consumer could not claim what it was promised.
  void decline(std::uint32_t lease_number, std::uint32_t export_index, std::uint64_t generation);
  // The consumer's row is half full: note it now.
  void row_half_full(std::uint32_t lease_number);
  // The consumer's GPU context is lost; what it held there is released. For the holder list.
  void lease_lost_context(std::uint32_t lease_number);

  // ---- forwarding (producer_forward.cpp; the table is in protocol/forward.h) ---------------
  // On the reaper; makes no device call: pins that fall due meanwhile wait for the next collect. The
  // descriptors are the asker's and stay the caller's. Throws kGone (the asker does not hold it),
  // kWithdrawn, kExpired, kLedgerFull, kBadArgument; kNotAvailableYet where what it is also behind has
  // come or ended meanwhile: it is to look, and to ask again.
  [[nodiscard]] protocol::ClaimTarget forward(std::uint32_t lease_number,
                                              const ForwardRequest& request, int pidfd,
                                              int life_line, std::uint32_t life_line_flags);
  // Withdraws what was forwarded for the process of this lease, by this lease or an earlier one;
  // nothing else, whatever incarnation that process names.
  void take_back(std::uint32_t lease_number, std::uint32_t export_index, std::uint64_t generation);
  // The lease's process has heard of what was forwarded for it, and names it to others from here on.
  void heard(std::uint32_t lease_number, const protocol::ClaimTarget& made);
  // It will say nothing any more: withdraws what it has not heard of.
  void hears_no_more(std::uint32_t lease_number);
  // What a third process needs to wait for a forwarder. On the reaper; no device call. Throws kGone
  // when no lease of this number has forwarded anything that is not over.
  [[nodiscard]] ForwarderFiles forwarder_files(std::uint32_t lease_number);
  // The lease's process has ended: lets every wait on its timelines pass. On the reaper; no device
  // call. False when it has forwarded nothing, or nothing that is left, and so nobody waits.
  bool complete_waits(std::uint32_t lease_number);
  // Forgets forwarders that are quiet and that no export names; waits for the device where this
  // process has waited for them, and keeps them where that fails. Not on the reaper.
  void drop_forwarders();
  // Whether that would do anything.
  [[nodiscard]] bool has_forwarders_to_drop();

  // ---- time (called by the reaper) --------------------------------------------------------
  // When run_time_limits has something to do next; nothing if never.
  [[nodiscard]] std::optional<Clock::time_point> next_deadline();
  // Ends what is out of time, and where there is any, runs a pass, which closes what can be closed.
  // Where nothing is out of time it closes nothing: that is for collect.
  void run_time_limits(Clock::time_point now);
  // Whether anything is lent, so that the reaper should collect from time to time: neither the free
  // of a lent block nor a release by a GPU tells anybody.
  [[nodiscard]] bool lends_anything();

  // ---- for people and for exit ------------------------------------------------------------
  [[nodiscard]] std::vector<Holder> holders();
  void add_stats(SharingStats& stats);  // fills the producer's part
  // Nothing is in flight, every noted holder has mapped the pieces that it holds, and the work that
  // was queued before their sends is done.
  [[nodiscard]] bool drained();
  // Tells every waiter that this process's GPU work will not come.
  void mark_context_lost();

  // ---- Lender -----------------------------------------------------------------------------
  bool collect() override;
  bool collect_thoroughly(int device, std::chrono::milliseconds at_most) override;
  bool may_return_piece(std::uint64_t piece_id) override;
  void piece_returned(std::uint64_t piece_id) override;
  bool wait_for_unmapped_pieces(int device, std::chrono::milliseconds at_most) override;
  std::string describe_holders(int device) override;

  // For tests: throws Error(kInternal) with the first broken invariant of records and tables.
  void check_invariants();
  // For tests under a thread sanitizer, which cannot follow two mappings of one memory: this
  // process's own mappings. Null for a lease that is not listed.
  [[nodiscard]] void* ledger_mapping() noexcept;
  [[nodiscard]] void* row_mapping(std::uint32_t lease_number);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace limbo
