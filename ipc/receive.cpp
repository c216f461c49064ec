#include "ipc/receive.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "allocator/capture_gate.h"
#include "allocator/error.h"
#include "ipc/claimed_block.h"
#include "ipc/fail_points.h"
#include "ipc/holdings.h"
#include "ipc/packet.h"
#include "ipc/protocol/mistakes.h"
#include "ipc/protocol/upstream.h"

namespace limbo {
namespace {

// How long a claim looks at an export that its producer is deciding about: a producer may have been
// stopped just there.
constexpr std::chrono::milliseconds kClosingPatience{1};
constexpr std::chrono::milliseconds kPatienceForAClaimSlot{200};

[[noreturn]] void producer_exited() {
  throw Error(ErrorCode::kProducerExited, "The process that sent this has ended.",
              "Keep the sender alive until its messages are opened.");
}

[[noreturn]] void throw_lost(int device, const std::string& words) {
  throw Error(ErrorCode::kDeviceError,
              "This process's context on device " + std::to_string(device) + " is lost" +
                  (words.empty() ? "." : ": " + words),
              "Nothing can be received there any more; start the process anew.");
}

[[noreturn]] void mismatch(const std::string& what) {
  throw Error(ErrorCode::kBadDescriptor,
              "The message does not match its sender's ledger: " + what + ".",
              "Pass descriptors on exactly as share() returned them.");
}

PieceFacts read_piece(const LedgerView& ledger, const ExportTicket& ticket) {
  if (ticket.piece_index >= ledger.capacities().pieces) mismatch("its piece is out of range");
  const PieceRow& row = ledger.piece(ticket.piece_index);
  const std::uint64_t word = row.word.load(std::memory_order_acquire);
  if ((word & kPieceInUse) == 0 || piece_generation(word) != ticket.piece_generation) {
    mismatch("its piece is another one now");
  }
  PieceFacts piece;
  piece.index = ticket.piece_index;
  piece.generation = ticket.piece_generation;
  piece.size_bytes = row.size_bytes.load(std::memory_order_relaxed);
  for (std::size_t byte = 0; byte < 16; ++byte) {
    const std::uint64_t half = row.uuid[byte / 8].load(std::memory_order_relaxed);
    piece.uuid.bytes[byte] = static_cast<std::uint8_t>(half >> (8 * (byte % 8)));
  }
  piece.handle.kind = static_cast<HandleKind>(row.handle_kind.load(std::memory_order_relaxed));
  for (std::size_t byte = 0; byte < 64; ++byte) {
    const std::uint64_t word_of_handle = row.handle[byte / 8].load(std::memory_order_relaxed);
    piece.handle.bytes[byte] = static_cast<std::byte>(word_of_handle >> (8 * (byte % 8)));
  }
  if (piece.handle.kind != HandleKind::kRuntimeIpc) {
    throw Error(ErrorCode::kNotAvailableYet,
                "Memory lent by a handle of kind " +
                    std::to_string(static_cast<unsigned>(piece.handle.kind)) +
                    " is not available yet.");
  }
  return piece;
}

// The ledger is believed; where the descriptor says something else, it is a forgery.
ExportFacts read_export(const LedgerView& ledger, const ExportTicket& ticket) {
  const ExportRow& row = ledger.export_row(ticket.export_index);
  ExportFacts facts;
  facts.offset_bytes = row.offset_bytes.load(std::memory_order_relaxed);
  facts.size_bytes = row.size_bytes.load(std::memory_order_relaxed);
  for (std::size_t index = 0; index < 2; ++index) {
    facts.points[index] = point_of(row.point_where[index].load(std::memory_order_relaxed),
                                   row.point_number[index].load(std::memory_order_relaxed));
    if (facts.points[index] != ticket.points[index]) mismatch("its timelines differ");
    // Timelines end there: a larger number would be waited for for ever.
    if (facts.points[index].number > protocol::kTimelineEnded) {
      mismatch("its number is one that no timeline reaches");
    }
  }
  if (row.first_piece.load(std::memory_order_relaxed) != ticket.piece_index ||
      row.piece_generation.load(std::memory_order_relaxed) != ticket.piece_generation ||
      row.piece_count.load(std::memory_order_relaxed) != ticket.piece_count) {
    mismatch("its piece differs");
  }
  if (facts.offset_bytes != ticket.offset_bytes || facts.size_bytes != ticket.size_bytes) {
    mismatch("its range differs");
  }
  facts.piece = read_piece(ledger, ticket);
  if (facts.piece.size_bytes != ticket.piece_size_bytes || facts.piece.uuid != ticket.device_uuid) {
    mismatch("its piece's size or device differs");
  }
  const protocol::UpstreamWord upstream =
      protocol::decode_upstream(row.upstream.load(std::memory_order_relaxed));
  facts.upstream_lost = upstream.lost;
  const bool whole = protocol::read_upstream(protocol::g_memory, ledger, upstream,
                                             [&](std::uint64_t where, std::uint64_t number) {
                                               facts.upstream.push_back(point_of(where, number));
                                             });
  if (!whole) mismatch("what it was made of is out of range");
  return facts;
}

// The owner's own numbers say nothing that its end does not.
void add_behind(std::vector<NumberBehind>& behind, const std::shared_ptr<ProducerLink>& link,
                const SenderPoint& sent) {
  if (sent.point.owner == 0 || sent.point.number == 0) return;
  behind.push_back(
      {.point = sent.point, .foreign = sent.foreign, .own = sent.foreign ? nullptr : link});
}

}  // namespace

// What a receive has until the block takes it over: a hold on its mapping, and then a claim that
// stands. Else the host releases the claim, since no device work has used the block yet.
class Receiver::Claim {
 public:
  Claim(std::shared_ptr<ProducerLink> link, ServiceThread& unmapper)
      : link_(std::move(link)), unmapper_(unmapper) {}
  Claim(Claim&& other) noexcept
      : link_(std::move(other.link_)),
        release_(other.release_),
        mapping_(other.mapping_),
        device_(other.device_),
        why_nowhere_(std::move(other.why_nowhere_)),
        unmapper_(other.unmapper_) {}
  Claim& operator=(Claim&&) = delete;
  ~Claim() {
    if (!link_) return;
    if (release_) {
      protocol::StdMemory memory;
      protocol::release_by_host(memory, link_->row().view(), release_->slot, release_->target);
      link_->row().released(release_->slot);
    }
    if (mapping_ != nullptr && link_->imports().let_go(mapping_)) unmapper_.nudge();
  }

  // Where the message says that it belongs; that it can be opened nowhere is said behind the claim.
  void goes_to(const PieceName& piece, int device) {
    device_ = device;
    if (!protocol::makes(protocol::Mistake::kHeldBehindClaim)) hold(piece);
  }
  void goes_nowhere(const Error& why) { why_nowhere_ = why; }
  void stands(const protocol::Release& release) noexcept { release_ = release; }

  [[nodiscard]] int device() const {
    if (why_nowhere_) throw *why_nowhere_;
    return device_;
  }
  // True: it was opened anew.
  bool map(const PieceFacts& piece) {
    if (mapping_ == nullptr) hold({piece.index, piece.generation});
    return link_->imports().open(*mapping_, piece);
  }
  [[nodiscard]] const Mapping& mapping() const noexcept { return *mapping_; }
  [[nodiscard]] const protocol::Release& release() const noexcept { return *release_; }
  void hand_over(ReleaseJob& job) noexcept {
    job.release = *release_;
    job.mapping = mapping_;
    link_.reset();
  }

 private:
  void hold(const PieceName& piece) { mapping_ = link_->imports().hold(piece, device_); }

  std::shared_ptr<ProducerLink> link_;
  std::optional<protocol::Release> release_;
  Mapping* mapping_ = nullptr;
  int device_ = -1;
  std::optional<Error> why_nowhere_;
  ServiceThread& unmapper_;
};

Receiver::Receiver(Device& device, Links& links, ReleaseQueue& releases, ServiceThread& unmapper,
                   LiveBlocks& living, ReceiveCounts& counts)
    : device_(device),
      links_(links),
      releases_(releases),
      unmapper_(unmapper),
      living_(living),
      counts_(counts) {}

std::shared_ptr<ProducerLink> Receiver::link_to_sender(const Descriptor& descriptor) {
  if (descriptor.boot != boot_id()) {
    throw Error(ErrorCode::kProducerExited,
                "The message was sent before this machine was last started, or on another one.",
                "Both processes must run on one machine.");
  }
  return links_.get({descriptor.producer, descriptor.directory, descriptor.socket_name},
                    {descriptor.ticket.export_index, descriptor.ticket.generation});
}

void Receiver::decline(const Descriptor& descriptor) {
  link_to_sender(descriptor)->decline(descriptor.ticket.export_index, descriptor.ticket.generation);
}

std::unique_ptr<ReceivedBlock> Receiver::receive(const Descriptor& descriptor,
                                                 const ReceiveOptions& options) {
  const ExportTicket& ticket = descriptor.ticket;
  while (true) {
    const std::shared_ptr<ProducerLink> link = link_to_sender(descriptor);
    DeclinedUnlessClaimed promise([&] { link->decline(ticket.export_index, ticket.generation); });
    if (link->producer_lost_context()) {
      throw Error(ErrorCode::kProducerExited,
                  "The process that sent this has lost its GPU context, and the memory with it.",
                  "Start the sender anew.");
    }
    if (ticket.export_index >= link->ledger().capacities().exports) {
      mismatch("its export is out of range");
    }
    LIMBO_FAIL_POINT("receive.before_claim");
    auto block = std::make_unique<ClaimedBlock>(releases_, living_, counts_);
    block->belong_to(device_, link);
    Claim claimed(link, unmapper_);
    find_mapping(claimed, ticket, options);
    const std::optional<std::uint32_t> slot = slot_for_claim(*link);
    promise.claimed();  // or it will be, or be declined, by another connection
    if (!slot) continue;

    claim(claimed, *link, ticket, *slot);
    LIMBO_FAIL_POINT("receive.after_claim");
    open(*block, claimed, link, ticket, options);
    counts_.receives.fetch_add(1, std::memory_order_relaxed);
    return block;
  }
}

// What comes behind a claim that stands. Throws; then the claim is given back.
void Receiver::open(ClaimedBlock& block, Claim& claimed, const std::shared_ptr<ProducerLink>& link,
                    const ExportTicket& ticket, const ReceiveOptions& options) const {
  const ExportFacts facts = read_export(link->ledger(), ticket);
  const int device = claimed.device();
  try {
    if (releases_.is_lost(device)) throw_lost(device, {});
    const StreamUse home = receiving_stream(device_, device, options);
    if (link->register_tables(device)) {
      LIMBO_FAIL_POINT("receive.after_register");
      links_.tell_life_line();  // the device is started
    }
    // Before it is mapped: an owner that ends waits for that, and is asked nothing behind it.
    const std::array<SenderPoint, 2> sent{link->meet(facts.points[0]), link->meet(facts.points[1])};
    std::vector<NumberBehind> behind;
    for (const SenderPoint& point : sent) add_behind(behind, link, point);
    for (const TimelinePoint& point : facts.upstream) add_behind(behind, link, link->meet(point));
    map(claimed, *link, facts.piece);
    {
      const StreamQuestion question(device_, StreamQuestion::Patient{});
      refuse_captured_receiver(device_, home.stream);
      for (const SenderPoint& point : sent) link->wait(home.stream, point);
    }
    LIMBO_FAIL_POINT("receive.after_wait");
    block.prepare(
        links_.holdings(),
        {.data = static_cast<const std::byte*>(claimed.mapping().base()) + facts.offset_bytes,
         .size_bytes = facts.size_bytes,
         .received_on = home.stream,
         .stream_id = home.id,
         .link = link,
         .claim = claimed.release(),
         .ticket = ticket,
         .own = {},
         .behind = nullptr},
        device);
    claimed.hand_over(block.job());
    block.fill(facts, home, std::move(behind));
  } catch (const Error& failure) {
    if (failure.code() != ErrorCode::kDeviceError) throw;
    if (releases_.is_lost(device, true)) {
      links_.tell_context_lost();
      throw_lost(device, failure.what());
    }
    throw;
  }
}

void Receiver::map(Claim& claimed, ProducerLink& link, const PieceFacts& piece) const {
  try {
    if (claimed.map(piece)) links_.tell_life_line();
  } catch (const Error&) {
    if (releases_.is_lost(claimed.device(), true)) throw;
    // Its memory went with it, where nobody had mapped it yet; it may still be dying.
    if (link.producer_ends_within(kUntilDeathIsSeen)) producer_exited();
    throw;
  }
}

std::optional<std::uint32_t> Receiver::slot_for_claim(ProducerLink& link) const {
  const auto slot = take_slot(link);
  if (slot || link.row().is_closed()) return slot;
  throw Error(ErrorCode::kLedgerFull,
              "This process holds " + std::to_string(link.row().view().claims()) +
                  " messages of one sender, as many as the sender's table takes.",
              "Raise the option ledger_claims (LIMBO_LEDGER_CLAIMS) in the sender, or let go of "
              "received tensors.");
}

void Receiver::claim(Claim& claimed, ProducerLink& link, const ExportTicket& ticket,
                     std::uint32_t slot) const {
  const protocol::ClaimTarget target{ticket.export_index, ticket.generation};
  const auto until = std::chrono::steady_clock::now() + kClosingPatience;
  protocol::StdMemory memory;
  const auto verdict = protocol::claim(
      memory, link.row().view(), slot, link.ledger().export_word(ticket.export_index), target, [&] {
        std::this_thread::yield();
        return protocol::makes(protocol::Mistake::kClosingWithoutPatience) ||
               std::chrono::steady_clock::now() < until;
      });
  if (verdict == protocol::ClaimVerdict::kStands) {
    claimed.stands({slot, target});
    return;
  }
  link.row().released(slot);
  if (link.producer_has_ended()) producer_exited();
  throw_refused(verdict);
}

// Before the claim is HELD: from then on the piece's owner counts on what the mark says.
void Receiver::find_mapping(Claim& claimed, const ExportTicket& ticket,
                            const ReceiveOptions& options) const {
  int device = -1;
  try {
    device = choose_device(ticket.device_uuid, options);
  } catch (const Error& nowhere) {
    claimed.goes_nowhere(nowhere);
    return;
  }
  claimed.goes_to({ticket.piece_index, ticket.piece_generation}, device);
}

// The producer frees slots when it notes the row, which it does now and then, and when the bell
// rings. So where releases are on their way, a full row is waited for, a fraction of a second.
std::optional<std::uint32_t> Receiver::take_slot(ProducerLink& link) const {
  const auto until = std::chrono::steady_clock::now() + kPatienceForAClaimSlot;
  for (bool room_will_come = true;;) {
    if (link.row().half_full()) releases_.poll();
    const auto slot = link.row().take();
    if (link.row().wants_bell()) link.ring_half_full();
    if (slot) return slot;
    if (!room_will_come || std::chrono::steady_clock::now() >= until) return std::nullopt;
    // On its way to the producer, with the producer, or back by the next attempt: asked in that order,
    // nothing is missed.
    room_will_come = link.releases_pending() > 0;
    room_will_come |= link.row().waits_for_producer();
    if (room_will_come) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int Receiver::choose_device(const Uuid& owner, const ReceiveOptions& options) const {
  const int count = device_.device_count();
  if (options.device) {
    if (*options.device >= 0 && *options.device < count) return *options.device;
    throw Error(ErrorCode::kBadArgument, "device is " + std::to_string(*options.device) + ".",
                "This process has devices 0 to " + std::to_string(count - 1) + ".");
  }
  std::string visible;
  for (int index = 0; index < count; ++index) {
    const Uuid uuid = device_.uuid(index);
    if (uuid == owner) return index;
    visible += (visible.empty() ? "" : ", ") + to_string(uuid);
  }
  throw Error(ErrorCode::kDeviceNotVisible,
              "The memory is on GPU " + to_string(owner) + "; this process sees " +
                  (visible.empty() ? "none" : visible) + ".",
              "Make that GPU visible, or name one of this process's GPUs with device=, which reads "
              "it over the link between them.");
}

void refuse_captured_receiver(Device& device, StreamRef stream) {
  if (!device.is_capturing(stream)) return;
  throw Error(ErrorCode::kBadArgument, "The receiving stream is being captured into a graph.",
              "Receive before the capture begins.");
}

StreamUse receiving_stream(Device& device, int index, const ReceiveOptions& options) {
  if (!device.has_stream_memory_operations(index)) {
    throw Error(ErrorCode::kDeviceError,
                "Device " + std::to_string(index) +
                    " has no stream memory operations, so nothing can be received on it.");
  }
  const StreamRef stream{index,
                         options.current_stream ? options.current_stream(index) : StreamHandle{}};
  const StreamQuestion question(device, StreamQuestion::Patient{});
  refuse_captured_receiver(device, stream);
  return {stream, device.stream_id(stream)};
}

}  // namespace limbo
