#include "ipc/producer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "allocator/block.h"
#include "allocator/capture_gate.h"
#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/ledger_options.h"
#include "ipc/producer_impl.h"
#include "ipc/protocol/mistakes.h"

namespace limbo {
namespace {

using protocol::ClaimVerdict;
using protocol::EndReason;
using protocol::ExportField;

// Longer is for ever, and keeps clock arithmetic away from its ends.
constexpr std::chrono::milliseconds kLongestTimeLimit = std::chrono::hours(24 * 365 * 10);

// How long a sender waits for exports that are over to be unpinned, when the table is full.
constexpr std::chrono::milliseconds kPatienceForAnExportSlot{100};

Capacities checked(const Capacities& capacities) {
  const bool fits = capacities.exports >= 1 &&
                    capacities.exports <= std::uint32_t{protocol::kMaxExportIndex} + 1 &&
                    capacities.pieces >= 1 && capacities.timelines >= 1 &&
                    capacities.claims >= protocol::kGroupClaims &&
                    capacities.claims % protocol::kGroupClaims == 0;
  if (!fits) {
    throw Error(ErrorCode::kBadArgument,
                "The tables cannot have " + std::to_string(capacities.exports) + " exports, " +
                    std::to_string(capacities.pieces) + " pieces, " +
                    std::to_string(capacities.claims) + " claims and " +
                    std::to_string(capacities.timelines) + " timelines.",
                "Use at least one of each, at most 2^24 exports, and a multiple of 512 claims.");
  }
  return capacities;
}

SendingStreams streams_of(StreamRef current, StreamRef home) {
  SendingStreams behind;
  behind.add(protocol::makes(protocol::Mistake::kHomeStreamOnly) ? home : current);
  behind.add(home);
  return behind;
}

}  // namespace

protocol::ExportFields fields_of(const ExportTicket& ticket,
                                 const protocol::UpstreamWord& upstream) {
  protocol::ExportFields fields{};
  at(fields, ExportField::kFirstPiece) = ticket.piece_index;
  at(fields, ExportField::kPieceGeneration) = ticket.piece_generation;
  at(fields, ExportField::kPieceCount) = ticket.piece_count;
  at(fields, ExportField::kOffsetBytes) = ticket.offset_bytes;
  at(fields, ExportField::kSizeBytes) = ticket.size_bytes;
  at(fields, ExportField::kPointWhere0) = where_of(ticket.points[0]);
  at(fields, ExportField::kPointWhere1) = where_of(ticket.points[1]);
  at(fields, ExportField::kPointNumber0) = ticket.points[0].number;
  at(fields, ExportField::kPointNumber1) = ticket.points[1].number;
  at(fields, ExportField::kUpstream) = protocol::encode(upstream);
  return fields;
}

void check_share_options(const void* data, std::size_t size_bytes, const ShareOptions& options) {
  if (data == nullptr || size_bytes == 0) {
    throw Error(ErrorCode::kBadArgument, "An empty range of memory cannot be shared.");
  }
  if (options.consumers < 1 || options.consumers > kMostConsumers) {
    throw Error(ErrorCode::kBadArgument, "consumers is " + std::to_string(options.consumers) + ".",
                "Use the number of processes that will open the message, 1 to " +
                    std::to_string(kMostConsumers) + ".");
  }
  if (options.time_limit && options.time_limit->count() < 0) {
    throw Error(ErrorCode::kBadArgument,
                "time_limit is " + std::to_string(options.time_limit->count()) + " ms.",
                "Use 0 or more.");
  }
}

void throw_refused(ClaimVerdict verdict) {
  switch (verdict) {
    case ClaimVerdict::kWithdrawn:
      throw Error(ErrorCode::kWithdrawn, "The sender has taken this message back.",
                  "Ask the sender for another one.");
    case ClaimVerdict::kExpired:
      throw Error(ErrorCode::kExpired,
                  "This message was opened after its time limit; its memory has been freed.",
                  "Open it earlier, or send with a longer time limit (option "
                  "message_time_limit_ms; where it was sent on, its owner's limit bounds it).");
    default:
      throw Error(ErrorCode::kGone,
                  "This message is over: all that was promised of it has been opened and released, "
                  "and its owner has freed the memory.",
                  "Open a message once per process that was promised it, or keep the tensor alive "
                  "in the sender.");
  }
}

Producer::Impl::Impl(Device& its_device, Allocator& its_allocator, Incarnation its_incarnation,
                     Capacities its_capacities, std::int64_t scans_per_second)
    : device(its_device),
      allocator(its_allocator),
      incarnation(its_incarnation),
      capacities(checked(its_capacities)),
      ledger_memory(SharedMemory::create("limbo-ledger", ledger_layout(capacities).total,
                                         ReceiverMay::kRead)),
      ledger(ledger_memory.data(), capacities),
      timelines(its_device, capacities.timelines),
      joining(its_device, timelines),
      exports(ledger),
      pieces(ledger),
      row_scans_per_second(scans_per_second) {
  LedgerHeader& header = ledger.header();
  header.version.store(kLedgerVersion, std::memory_order_relaxed);
  header.incarnation_high.store(incarnation.high, std::memory_order_relaxed);
  header.incarnation_low.store(incarnation.low, std::memory_order_relaxed);
  header.capacity_exports.store(capacities.exports, std::memory_order_relaxed);
  header.capacity_pieces.store(capacities.pieces, std::memory_order_relaxed);
  header.magic.store(kLedgerMagic, std::memory_order_release);
}

Producer::Impl::~Impl() {
  for (std::uint32_t index = 0; index < exports.slots_touched(); ++index) {
    if (!exports.record(index).in_use) continue;
    Allocator::lender_note(exports.record(index).block.block) = nullptr;
    allocator.unpin(exports.record(index).block.block);
  }
  finish(exports.take_over(), let_go_chain);
  finish(0, allocator.take_let_go());
}

Producer::Producer(Device& device, Allocator& allocator, Incarnation incarnation,
                   Capacities capacities, std::int64_t scans_per_second)
    : impl_(std::make_unique<Impl>(device, allocator, incarnation, capacities, scans_per_second)) {}

Producer::~Producer() = default;

// ---- share ----------------------------------------------------------------------------------
// FREE -> OPEN (protocol/publish.h). Steps: pin, reserve a slot under the lock, enqueue the
// timelines outside of it, OPEN. Any failure undoes them in the opposite order.

bool Producer::Impl::can_order(int device_index) {
  const std::uint64_t bit = device_index < 64 ? std::uint64_t{1} << device_index : 0;
  if ((able_devices.load(std::memory_order_relaxed) & bit) != 0) return true;
  if (!device.has_stream_memory_operations(device_index)) return false;
  able_devices.fetch_or(bit, std::memory_order_relaxed);
  return true;
}

void Producer::Impl::check_request(const void* data, std::size_t size_bytes,
                                   const ShareOptions& options) const {
  check_share_options(data, size_bytes, options);
  if (!context_lost.load(std::memory_order_relaxed)) return;
  throw Error(ErrorCode::kDeviceError, "The GPU context of this process is lost.",
              "Restart the process.");
}

void Producer::Impl::check_devices(const SendingStreams& behind) {
  for (const StreamRef stream : behind.all()) {
    if (can_order(stream.device)) continue;
    throw Error(ErrorCode::kNotLendable,
                "Streams of device " + std::to_string(stream.device) +
                    " cannot write words in host memory, so nothing can be lent from it.",
                "Run `python -m torch_limbo doctor` to see why.");
  }
}

void Producer::Impl::refuse_captured(const SendingStreams& behind) {
  for (const StreamRef stream : behind.all()) {
    if (!device.is_capturing(stream)) continue;
    throw Error(ErrorCode::kNotAvailableYet,
                "Sending while a stream of the sender is being captured into a graph is not "
                "available yet.",
                "Send before the capture begins or after it has ended.");
  }
}

Producer::Impl::Reserved Producer::Impl::reserve(const void* data, std::size_t size_bytes,
                                                 const BlockView& block,
                                                 const ShareOptions& options,
                                                 const SendingStreams& behind) {
  const auto time_limit =
      std::min(options.time_limit.value_or(default_message_time_limit()), kLongestTimeLimit);
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(data) -
                                                 static_cast<const std::byte*>(block.piece_base));
  std::optional<MemoryHandle> handle;
  Uuid device_uuid;
  for (bool looked = false;;) {
    bool piece_missing = false;
    {
      Hold hold(*this);
      auto piece_index = pieces.find(block.piece_id);
      if (!piece_index && handle) {
        piece_index = pieces.insert(block.piece_id, block.stream.device, device_uuid,
                                    block.piece_size_bytes, *handle);
      }
      piece_missing = !piece_index;
      if (piece_index) {
        const auto index = exports.reserve(block, offset, size_bytes, *piece_index, time_limit,
                                           static_cast<std::uint32_t>(options.consumers));
        if (index) {
          pieces.set_unmap_wanted(*piece_index, false);
          // Freed by another thread since it was pinned: that may have been absorbed already, when
          // this export did not hang on the block yet. (Who absorbed it had this lock.)
          if (block_word::state(block.block->word.load(std::memory_order_acquire)) !=
              BlockState::kAllocated) {
            exports.let_go(Allocator::lender_note(block.block), ProducerClock::now());
          }
          if (exports.more_than_half_full()) run_pass(protocol::Look::kChanged);
          return {*index, exports.record(*index).generation, *piece_index,
                  pieces.record(*piece_index)};
        }
        if (looked) {
          throw Error(ErrorCode::kLedgerFull,
                      "All " + std::to_string(capacities.exports) +
                          " exports of the ledger are in flight or held.",
                      "Raise the option ledger_exports, or let consumers release what they hold.");
        }
      }
    }
    if (piece_missing) {
      // Driver calls, so without the lock, and none while a capture goes on. The pin keeps the piece.
      refuse_captured(behind);
      handle = device.export_memory(block.stream.device, block.piece_base);
      device_uuid = device.uuid(block.stream.device);
    } else {
      looked = true;
      look_thoroughly(kPatienceForAnExportSlot);
    }
  }
}

ExportTicket Producer::share(const void* data, std::size_t size_bytes,
                             const ShareOptions& options) {
  Impl& impl = *impl_;
  impl.check_request(data, size_bytes, options);
  // One look at the address; refused where it is no block's that can be lent.
  const BlockView block = impl.allocator.pin(data);
  return impl.share_pinned(data, size_bytes, options, block,
                           streams_of(options.current_stream, block.stream));
}

void Producer::pin_own(const OwnOpen& own) {
  impl_->allocator.pin_again(own.block.block);
}

ExportTicket Producer::share_received(const OwnOpen& own, const void* data, std::size_t size_bytes,
                                      const ShareOptions& options, StreamRef received_on,
                                      std::span<const StreamUse> also_on) {
  Impl& impl = *impl_;
  SendingStreams behind;
  try {
    behind = streams_of(options.current_stream, own.block.stream);
    behind.add(received_on);
    for (const StreamUse& use : also_on) behind.add(use.stream);
    impl.check_request(data, size_bytes, options);
  } catch (...) {
    impl.allocator.unpin(own.block.block);
    throw;
  }
  return impl.share_pinned(data, size_bytes, options, own.block, behind, &own);
}

// The pin is taken over: it stays when this returns, and is undone when it throws.
ExportTicket Producer::Impl::share_pinned(const void* data, std::size_t size_bytes,
                                          const ShareOptions& options, const BlockView& block,
                                          const SendingStreams& behind, const OwnOpen* received) {
  bool reserved = false;
  Reserved slot;
  try {
    check_devices(behind);
    const auto inside = static_cast<std::size_t>(static_cast<const std::byte*>(data) -
                                                 static_cast<const std::byte*>(block.data));
    if (size_bytes > block.size_bytes - inside) {
      throw Error(ErrorCode::kBadArgument, "The range of " + std::to_string(size_bytes) +
                                               " bytes ends behind its block, "
                                               "which has " +
                                               std::to_string(block.size_bytes - inside) +
                                               " from there.");
    }
    LIMBO_FAIL_POINT("share.after_pin");
    slot = reserve(data, size_bytes, block, options, behind);
    reserved = true;
    LIMBO_FAIL_POINT("share.after_reserve");
    if (received != nullptr) send_on_own(slot.export_index, *received);
    enqueue_numbers(exports.record(slot.export_index), behind);
    LIMBO_FAIL_POINT("share.after_enqueue");
  } catch (...) {
    if (reserved) {
      Hold hold(*this);
      exports.cancel(slot.export_index);
    }
    allocator.unpin(block.block);
    throw;
  }

  ExportRecord& record = exports.record(slot.export_index);
  const ExportTicket ticket{.export_index = slot.export_index,
                            .generation = slot.generation,
                            .piece_index = slot.piece_index,
                            .piece_generation = slot.piece.generation,
                            .piece_size_bytes = slot.piece.size_bytes,
                            .piece_count = 1,
                            .offset_bytes = record.offset_bytes,
                            .size_bytes = size_bytes,
                            .points = {record.points[0], record.points[1]},
                            .device_uuid = slot.piece.device_uuid};
  record.sent = ProducerClock::now();
  exports.open(slot.export_index, fields_of(ticket, record.upstream));
  sends.fetch_add(1, std::memory_order_relaxed);
  LIMBO_FAIL_POINT("share.after_open");
  return ticket;
}

// Whether one of the streams is being captured is asked here, where no capture begins between the
// answer and the number.
void Producer::Impl::enqueue_numbers(ExportRecord& record, const SendingStreams& behind) {
  const StreamQuestion question(device, StreamQuestion::Patient{});
  refuse_captured(behind);
  const std::array<TimelinePoint, 2> numbers = joining.advance(behind.all());
  std::copy(numbers.begin(), numbers.end(), std::begin(record.points));
  std::copy(std::begin(record.points), std::end(record.points), std::begin(record.own));
}

bool Producer::withdraw(std::uint32_t export_index, std::uint64_t generation) {
  Impl& impl = *impl_;
  if (export_index >= impl.capacities.exports) return false;
  Impl::Hold hold(impl);
  if (!impl.exports.drain(export_index, generation, EndReason::kWithdrawn)) return false;
  impl.run_pass(protocol::Look::kChanged);
  return true;
}

// ---- in the same process --------------------------------------------------------------------

OwnOpen Producer::open_own(std::uint32_t export_index, std::uint64_t generation) {
  Impl& impl = *impl_;
  if (export_index >= impl.capacities.exports) throw_refused(ClaimVerdict::kGone);
  Impl::Hold hold(impl);
  const ClaimVerdict verdict = protocol::verdict_of(impl.exports.read(export_index), generation);
  if (verdict != ClaimVerdict::kStands) throw_refused(verdict);
  const ExportRecord& record = impl.exports.record(export_index);
  OwnOpen own{.block = record.block,
              .offset_bytes = record.offset_bytes,
              .size_bytes = record.size_bytes,
              .points = {record.points[0], record.points[1]},
              .forwarder = record.forwarder != nullptr ? record.forwarder->timelines : nullptr,
              .behind = impl.numbers_behind(export_index),
              .upstream_lost = record.upstream.lost};
  impl.allocator.pin_again(record.block.block);
  LIMBO_FAIL_POINT("own.after_pin");
  impl.exports.claimed_by_owner(export_index);
  return own;
}

// The word of the ledger's header (read: ProducerLink::producer_lost_context, acquire):
//
// | word         | from, to | who, when                    | order   | why a death is harmless          |
// |--------------|----------|------------------------------|---------|----------------------------------|
// | context_lost | 0, 1 ->  | owner: when a device says so | release | before it: its end tells all and |
// |              | 1        | to a call of its own, or to  |         | more; behind it: who has read it |
// |              |          | the worker, which asks; and  |         | ends the timelines itself, and   |
// |              |          | again at every look          |         | whoever sees its end does        |
//
// It is never taken back. Nothing is ordered by it: a claim that has not seen it stands, and the block is
// an orphan like those that were there before. Consumers read it before they claim, when they are asked
// for orphans, and whenever their reaper looks; the timelines, which end behind it, let everybody pass
// who has not.
void Producer::mark_context_lost() {
  impl_->context_lost.store(true, std::memory_order_relaxed);
  impl_->ledger.header().context_lost.store(1, std::memory_order_release);
  impl_->timelines.end_all();
}

void* Producer::ledger_mapping() noexcept {
  return impl_->ledger_memory.data();
}

}  // namespace limbo
