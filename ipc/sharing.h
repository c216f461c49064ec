// Sharing between processes: the one header of ipc/ that other layers include.
//
// A producer shares a block: the result is a descriptor, bytes that may travel by any road. A
// consumer receives it: the block's memory, mapped, usable behind everything that the producer had
// queued when it shared. Releasing is stream-ordered: the producer sees it when the consumer's GPU
// has passed it. Nothing here waits for a stream, a peer or the GIL, except where a comment says
// so.
//
// Every function is thread-safe, and throws Error(kForkedChild) in a child that was forked after
// its parent had begun to share. Receiving needs no Limbo allocator in the process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "allocator/allocator.h"
#include "allocator/capture_gate.h"
#include "ipc/layout.h"

namespace limbo {

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;

// A promise costs nothing until a process comes; then about 24 bytes until its message is over.
inline constexpr int kMostConsumers = 1'000'000;

struct ShareOptions {
  // Processes that are promised the block, 1 to kMostConsumers: until so many have opened the message
  // (however often each) it stays openable, within its time limit, whatever its owner frees.
  int consumers = 1;
  // How long after the later of the send and the owner's free an unopened message stays openable. What
  // is sent on stays so for no longer than the message that it came by, whatever is asked for: it is
  // its owner's memory, and the owner has agreed to no more.
  std::optional<std::chrono::milliseconds> time_limit{};  // default: option message_time_limit_ms
  // The sending thread's current stream; what it has queued comes before the consumer's reads.
  StreamRef current_stream{};
};

struct ReceiveOptions {
  // The device to open on; default: the owner's, found by its UUID.
  std::optional<int> device{};
  // The current stream of `device` in the receiving thread: it will wait for the sender's work.
  // Default: the default stream.
  std::function<StreamHandle(int device)> current_stream{};
  // Given the message's `extra` when the message has been checked and before anything is claimed; what
  // it throws ends the receive.
  std::function<void(const Bytes& extra)> check_extra{};
};

// Names the memory of a received storage: equal keys are the same bytes on the same device.
struct ReceivedKey {
  Incarnation producer;
  std::uint32_t piece_index = 0;
  std::uint64_t piece_generation = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  int device = 0;

  friend bool operator==(const ReceivedKey&, const ReceivedKey&) = default;
};

// One claim on one export. Made by Sharing::receive; release() ends it, and so does the destructor. In a
// child that was forked meanwhile both do nothing: the claim is the parent's, and the memory is not the
// child's. What a block is called (data, size, device, key) can be asked there too.
class ReceivedBlock {
 public:
  virtual ~ReceivedBlock() = default;

  [[nodiscard]] virtual void* data() const noexcept = 0;
  [[nodiscard]] virtual std::size_t size_bytes() const noexcept = 0;
  [[nodiscard]] virtual int device() const noexcept = 0;
  [[nodiscard]] virtual const ReceivedKey& key() const noexcept = 0;

  // The block belongs to this very process.
  [[nodiscard]] virtual bool same_process() const noexcept = 0;

  // The producer has died, or one of all who have sent the block on has before its own work was done:
  // the memory stays readable, that work will not come. Whoever has waited for the receiving stream
  // sees it. It stays so, here and where it is sent on, whoever writes the block anew: send a copy.
  // Where that process lives on without the GPU context of one of its devices, what it had queued on
  // another one may run still: until it has ended, the memory may change.
  // Throws kForkedChild: a fork child does not see who lives.
  [[nodiscard]] virtual bool orphaned() const = 0;

  // `other`, of the same key, brought the same memory and will be given back: orphaned() is true from
  // here on where either message's would be, and what is sent on of this block comes behind what both
  // were behind, with both's marks; so the stream that received `other` has to live for as long as that.
  // Takes no more room the more messages there are. Throws kForkedChild.
  virtual void came_also_by(const ReceivedBlock& other) = 0;

  // The block is also used on `stream`: the release waits for what that has queued by then. A stream
  // that was named lives until stats().releases_pending is 0: NVIDIA's driver crashes on the handle
  // of one that was destroyed. (torch never destroys its own.) Where `stream` is being captured, the
  // claim lasts until that graph is destroyed. Throws kBadArgument for cudaStreamPerThread, and
  // kDeviceError for what is no stream.
  virtual void record_stream(StreamRef stream) = 0;

  // Gives the block back behind the streams that used it. The host goes on at once. Idempotent: a
  // second release does nothing and is counted in SharingStats::double_releases.
  virtual void release() noexcept = 0;
};

struct Received {
  std::unique_ptr<ReceivedBlock> block;
  Bytes extra;  // what share was given
};

// One line of "who holds what".
struct Holder {
  enum class State : std::uint8_t {
    kConnected,   // alive
    kQuarantine,  // has ended; its GPU work, or a fork child of it, may still run
  };
  std::int64_t pid = 0;  // for people only
  std::string incarnation;
  State state = State::kConnected;
  std::string why;  // for quarantine: what it waits for; or that its GPU context is lost
  std::uint64_t claims = 0;
  std::uint64_t bytes = 0;
  std::uint64_t mapped_pieces = 0;
  std::uint64_t mapped_bytes = 0;             // of these pieces, held or not
  std::chrono::milliseconds oldest_claim{0};  // since it was noted
};

// What a reap has taken back.
struct Reaped {
  std::uint64_t leases = 0;  // consumers that are done with
  std::uint64_t claims = 0;  // theirs
};

// A process of this user that lends: what names it to the functions below.
struct LendingProcess {
  Incarnation incarnation;
  std::string directory;  // its runtime directory
  std::int64_t pid = 0;   // for people only

  friend bool operator==(const LendingProcess&, const LendingProcess&) = default;
};

struct PublishedName {
  std::string name;
  LendingProcess owner;
};

struct SharingStats {
  // as a producer
  std::uint64_t exports_open = 0;  // not FREE
  std::uint64_t in_flight = 0;     // promises not yet claimed
  std::uint64_t held_claims = 0;   // noted
  std::uint64_t sends = 0;         // all since the start
  std::uint64_t forwards = 0;      // exports made for consumers that sent on what they hold
  std::uint64_t closed = 0;        // exports that are over
  std::uint64_t expired = 0;
  std::uint64_t withdrawn = 0;
  std::uint64_t forwarders = 0;  // consumers that have sent on what is not over yet
  std::uint64_t leases_connected = 0;
  std::uint64_t leases_quarantined = 0;
  std::uint64_t leases_swept = 0;
  std::uint64_t claims_swept = 0;
  // as a consumer
  std::uint64_t forwarders_met = 0;  // others that have sent on what was opened here, and live
  std::uint64_t receives = 0;
  std::uint64_t releases = 0;
  std::uint64_t releases_pending = 0;  // enqueued or parked, not landed
  std::uint64_t double_releases = 0;
  std::uint64_t pieces_mapped = 0;
  std::uint64_t opens = 0;  // driver calls
  std::uint64_t closes = 0;
};

class Sharing {
 public:
  virtual ~Sharing() = default;

  // Makes the block that holds `data` claimable once more and returns a descriptor of
  // [data, data + size_bytes), with `extra` (at most 64 KiB, opaque here) under the same checksum.
  // Errors: kNotLendable, kLedgerFull, kNotAvailableYet, kBadArgument, kNoChannel, kDeviceError.
  // Memory of a received block that lives is sent on: its owner makes the export, and is asked and
  // waited for, at most a second. The third process's work comes behind that of the owner and of
  // this process. Errors then also: kGone, kWithdrawn, kExpired, kProducerExited (send a copy).
  [[nodiscard]] virtual Bytes share(const void* data, std::size_t size_bytes,
                                    const ShareOptions& options, ByteSpan extra) = 0;

  // Errors: kBadDescriptor, kGone, kWithdrawn, kExpired, kProducerExited, kDeviceNotVisible,
  // kNoChannel, kLedgerFull, kDeviceError, kBadArgument (a stream that is being captured; `device`),
  // and what check_extra throws. After an error nothing is held, and the sender expects this process no
  // more (where it can be told; else until the message's time is over, as after bytes that are no
  // descriptor); a piece that was mapped for it may stay in the import cache. Blocks up to the handshake
  // deadline on the first message of a producer, for the driver's open on the first message of a piece,
  // and a fraction of a second when this process's row is full of releases that are not noted yet.
  [[nodiscard]] virtual Received receive(ByteSpan descriptor, const ReceiveOptions& options) = 0;

  // The `extra` of a descriptor, checked, without claiming anything.
  [[nodiscard]] virtual Bytes peek_extra(ByteSpan descriptor) = 0;

  // Takes a message of this process back, also one by which it has sent memory on: who has not
  // claimed it gets kWithdrawn, holders keep it. Throws kBadArgument for another process's; kNoChannel
  // when the owner of what was sent on cannot be told, after at most a second: where it lives, the
  // message can still be opened.
  virtual void withdraw(ByteSpan descriptor) = 0;

  // Unpins what is over. Never blocks. True when anything came back here.
  virtual bool collect() = 0;

  // Looks at every consumer now and takes back what the dead held whose GPU work has ended, which
  // happens by itself a moment later. With `force` also from those in quarantine (holders() says
  // why): the caller vouches that none of their GPU work runs any more; where that is wrong, memory
  // is reused under it. Waits for the background threads. Returns what was taken back meanwhile.
  virtual Reaped reap(bool force) = 0;

  [[nodiscard]] virtual std::vector<Holder> holders() = 0;
  [[nodiscard]] virtual SharingStats stats() = 0;

  // For whoever captures a graph that may use received memory, on the thread that captures: every
  // received block of the device that lives now keeps its claim until the graph that `capturing` is
  // captured into is destroyed. Nobody can see which blocks the captured kernels use, so these are
  // all; call it when the capture begins and before it ends. (Without it, a block that is let go of
  // while a stream that it knows is being captured, and one whose record_stream names such a
  // stream, are kept too.) So that no call of another thread spoils the capture in the moment in which
  // it begins, put a BeginningCapture (capture_gate.h) around the beginning. False where `capturing` is not being captured, or where this process has
  // neither shared nor received. Throws kDeviceError.
  virtual bool keep_for_graph(StreamRef capturing) = 0;

  // Waits, at most `at_most`, until nothing is in flight, every holder has mapped what it holds, and
  // what was queued before it was sent is done. Called at exit (option exit_drain_ms). True when that was reached.
  virtual bool drain(std::chrono::milliseconds at_most) = 0;

  [[nodiscard]] virtual Incarnation incarnation() = 0;

  // ---- names -------------------------------------------------------------------------------
  // A NAME has 1 to 200 bytes, no '/', no '.' at its beginning; anything else is kBadArgument. The
  // names of one user are one space; runtime directories are searched in one order, all of them.

  // Lets every process of this user acquire [data, data + size_bytes) under `name`, until it is
  // unpublished or this process ends. `options` and `extra` (a good 3 KiB at most) are those of each
  // send that an acquire makes: their stream must live as long, and consumers must be 1. Unpublish
  // before the memory is freed: freed earlier it stays in use, and cannot be acquired any more.
  // Errors: kBadArgument, kNotLendable, kNameTaken (with who has it), kBusy (the names are locked
  // for 2 s), kNoChannel. After an error nothing is published.
  virtual void publish(const std::string& name, const void* data, std::size_t size_bytes,
                       const ShareOptions& options, ByteSpan extra) = 0;
  // Messages that were acquired stay. False where this process publishes no such name. Errors:
  // kBadArgument, kBusy, kNoChannel; then it is published still.
  virtual bool unpublish(const std::string& name) = 0;
  // A message made for this process by whoever publishes `name`; open it by receive, soon: it is
  // promised. Waits for its owner, at most 1 s. Errors: kBadArgument, kNoSuchName, kGone (the memory
  // was freed), kProducerExited, kNoChannel, and what a share meets there.
  [[nodiscard]] virtual Bytes acquire(const std::string& name) = 0;
  // What living processes publish, by directory and name.
  [[nodiscard]] virtual std::vector<PublishedName> names() = 0;

  // ---- other processes ---------------------------------------------------------------------
  // Each waits at most 1 s for an answer. Errors: kProducerExited, kNoChannel.

  // Those that live and lend, this one too.
  [[nodiscard]] virtual std::vector<LendingProcess> processes() = 0;
  [[nodiscard]] virtual std::vector<Holder> holders_of(const LendingProcess& process) = 0;
  [[nodiscard]] virtual std::vector<std::string> published_by(const LendingProcess& process) = 0;
  virtual Reaped reap_in(const LendingProcess& process, bool force) = 0;
};

// Loading the library starts no thread, no listener and no device; the first use of these does.
// Made once, never destroyed. `process_allocator` is on `process_device()` and has the process's
// Sharing as its lender.
[[nodiscard]] Allocator& process_allocator();
[[nodiscard]] Sharing& process_sharing();

}  // namespace limbo
