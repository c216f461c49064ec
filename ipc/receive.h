// Receiving from another process: claim, check against the ledger, map, wait, hand out.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "allocator/device/device.h"
#include "ipc/descriptor.h"
#include "ipc/links.h"
#include "ipc/live_blocks.h"
#include "ipc/release_queue.h"
#include "ipc/sharing.h"

namespace limbo {

struct ReceiveCounts {
  std::atomic<std::uint64_t> receives{0};
  std::atomic<std::uint64_t> releases{0};
  std::atomic<std::uint64_t> double_releases{0};
};

// Tells the sender that its message will not be opened here, unless a claim has been made, which uses
// the promise up whatever becomes of it.
template <typename Decline>
class DeclinedUnlessClaimed {
 public:
  explicit DeclinedUnlessClaimed(Decline decline) : decline_(std::move(decline)) {}
  DeclinedUnlessClaimed(const DeclinedUnlessClaimed&) = delete;
  DeclinedUnlessClaimed& operator=(const DeclinedUnlessClaimed&) = delete;
  ~DeclinedUnlessClaimed() {
    if (!claimed_) decline_();
  }
  void claimed() noexcept { claimed_ = true; }

 private:
  const Decline decline_;
  bool claimed_ = false;
};

class ClaimedBlock;

class Receiver {
 public:
  Receiver(Device& device, Links& links, ReleaseQueue& releases, ServiceThread& unmapper,
           LiveBlocks& living, ReceiveCounts& counts);

  // The block that a descriptor of another process names. Errors as Sharing::receive.
  [[nodiscard]] std::unique_ptr<ReceivedBlock> receive(const Descriptor& descriptor,
                                                       const ReceiveOptions& options);
  // The message will not be opened here: its sender is told, and connected to for that. Throws as
  // receive does; then it is told nothing, or was told by the connection that failed.
  void decline(const Descriptor& descriptor);

 private:
  class Claim;

  void open(ClaimedBlock& block, Claim& claimed, const std::shared_ptr<ProducerLink>& link,
            const ExportTicket& ticket, const ReceiveOptions& options) const;
  [[nodiscard]] std::shared_ptr<ProducerLink> link_to_sender(const Descriptor& descriptor);
  void find_mapping(Claim& claimed, const ExportTicket& ticket,
                    const ReceiveOptions& options) const;
  // A free slot; nothing where the link takes no claims any more: there is, or will be, another one.
  // Throws kLedgerFull when the row is full of what is held.
  [[nodiscard]] std::optional<std::uint32_t> slot_for_claim(ProducerLink& link) const;
  void claim(Claim& claimed, ProducerLink& link, const ExportTicket& ticket,
             std::uint32_t slot) const;
  void map(Claim& claimed, ProducerLink& link, const PieceFacts& piece) const;
  // A free slot; nothing when the row is full of what is held, or takes no more claims.
  [[nodiscard]] std::optional<std::uint32_t> take_slot(ProducerLink& link) const;
  [[nodiscard]] int choose_device(const Uuid& owner, const ReceiveOptions& options) const;

  Device& device_;
  Links& links_;
  ReleaseQueue& releases_;
  ServiceThread& unmapper_;  // told of mappings that become idle
  LiveBlocks& living_;
  ReceiveCounts& counts_;
};

// Throws kBadArgument where the stream that is to receive is being captured.
void refuse_captured_receiver(Device& device, StreamRef stream);

// The stream that receives on `device`, checked: it can wait on words and is not being captured.
[[nodiscard]] StreamUse receiving_stream(Device& device, int index, const ReceiveOptions& options);

}  // namespace limbo
