// The consumer's end of the channel, fed with any welcome.
//
// A listener takes the consumer's connection and answers with what the input says: raw packets, or a
// welcome with changed fields and descriptors that are tables of the right size and seals, or
// anything else. Either the consumer gets a documented error and keeps nothing, or it has a link
// whose tables are as large as they must be.
#include <poll.h>
#include <sys/un.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "allocator/error.h"
#include "ipc/channel_socket.h"
#include "ipc/handshake.h"
#include "ipc/incarnation.h"
#include "ipc/life_line.h"
#include "ipc/messages.h"
#include "ipc/packet.h"
#include "ipc/producer_link.h"
#include "ipc/shared_memory.h"
#include "tests/fuzz/channel_support.h"
#include "tests/fuzz/target.h"
#include "tests/unit/sim_support.h"

namespace limbo::fuzz::handshake {
namespace {

// Only a machine that stands still reaches it: the listener closes what it has answered.
constexpr std::chrono::milliseconds kDeadline{1000};
constexpr int kNextConsumerWithin_ms = 30'000;

// Another process's producer, as far as a consumer can tell: accepts, answers, closes.
class Listener {
 public:
  Listener() {
    socket_ = listen_in(directory_, channel_socket_name(incarnation_));
    thread_ = std::thread([this] { serve(); });
    thread_.detach();  // lives as long as the program
  }
  [[nodiscard]] ProducerAddress address() const {
    return {incarnation_, directory_.path(), channel_socket_name(incarnation_)};
  }
  // What the next consumer is answered with; called on the listener's thread.
  void answer_next(std::function<void(int)> answer) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
    changed_.notify_all();
  }
  // Until it has been.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !answer_; });
  }

 private:
  void serve() {
    for (;;) {
      pollfd entry{socket_.get(), POLLIN, 0};
      if (::poll(&entry, 1, kNextConsumerWithin_ms) <= 0) continue;
      OwnedFd consumer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return answer_ != nullptr; });
      if (consumer.valid()) answer_(consumer.get());
      consumer.reset();
      answer_ = nullptr;
      changed_.notify_all();
    }
  }

  const Incarnation incarnation_ = random_incarnation();
  const RuntimeDirectory directory_ = RuntimeDirectory::open_own();
  OwnedFd socket_;
  std::thread thread_;
  std::mutex mutex_;  // guards answer_
  std::condition_variable changed_;
  std::function<void(int)> answer_;
};

struct World {
  SimDevice& sim = *testing::make_sim().release();
  Listener listener;
  const Incarnation own = random_incarnation();
};

World& world() {
  static World& made = *new World;
  return made;
}

Capacities capacities(Input& input) {
  Capacities sizes{.exports = 32, .pieces = 8, .claims = 512, .timelines = 4};
  const std::uint8_t change = input.number();
  if ((change & 1) != 0) sizes.exports = input.number<std::uint32_t>();
  if ((change & 2) != 0) sizes.pieces = input.number<std::uint32_t>();
  if ((change & 4) != 0) sizes.claims = input.number<std::uint32_t>();
  if ((change & 8) != 0) sizes.timelines = input.number<std::uint32_t>();
  if ((change & 16) != 0) sizes.claims = 512 * (1 + std::uint32_t{input.number()});
  return sizes;
}

// A ledger that says what one says, but for what the input changes.
OwnedFd make_ledger(Input& input, const Capacities& sizes) {
  SharedMemory memory =
      SharedMemory::create("limbo-fuzz", ledger_layout(sizes).total, ReceiverMay::kRead);
  auto* header = static_cast<LedgerHeader*>(memory.data());
  const Incarnation& incarnation = world().listener.address().incarnation;
  header->magic.store(kLedgerMagic);
  header->version.store(kLedgerVersion);
  header->incarnation_high.store(incarnation.high);
  header->incarnation_low.store(incarnation.low);
  const ByteSpan scribble = input.bytes(input.number());
  std::copy(scribble.begin(), scribble.end(),
            static_cast<std::byte*>(memory.data()) + input.below(64));
  return OwnedFd(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
}

// A welcome's five descriptors, each right unless the input says otherwise.
std::vector<OwnedFd> tables(Input& input, int own, std::vector<OwnedFd>& kept) {
  constexpr Capacities kSizes{.exports = 32, .pieces = 8, .claims = 512, .timelines = 4};
  std::vector<OwnedFd> made;
  const std::uint8_t change = input.number();
  for (std::size_t i = 0; i < Welcome::kDescriptors; ++i) {
    if (((change >> i) & 1) != 0) {
      made.push_back(make_any(input.number(), own, kept));
    } else if (i == 0) {
      made.push_back(make_ledger(input, kSizes));
    } else if (i == 3) {
      made.push_back(make_life_line(kept));
    } else {
      const bool sealed = ((change >> (i + 4)) & 1) == 0;
      made.push_back(make_memfd(i == 2 ? row_layout(kSizes).total : timelines_bytes(kSizes),
                                sealed ? kAllSeals : 0));
    }
  }
  if ((change & 16) != 0) made.pop_back();
  if ((change & 128) != 0) made.push_back(make_any(input.number(), own, kept));
  return made;
}

void answer(ByteSpan bytes, int socket) {
  Input input(bytes);
  std::vector<OwnedFd> kept;
  Bytes packet;
  std::vector<OwnedFd> descriptors;
  if (input.below(3) == 0) {
    const ByteSpan raw = input.bytes(input.number<std::uint16_t>() % 5000);
    packet.assign(raw.begin(), raw.end());
    descriptors = tables(input, socket, kept);
  } else {
    Welcome welcome;
    welcome.lease_number = input.number<std::uint32_t>();
    welcome.incarnation = world().listener.address().incarnation;
    const std::uint8_t change = input.number();
    if ((change & 1) != 0) welcome.incarnation.low = input.number<std::uint64_t>();
    if ((change & 2) != 0) welcome.life_line_flags = input.number<std::uint32_t>();
    welcome.capacities = capacities(input);
    packet = encode(welcome);
    descriptors = tables(input, socket, kept);
    const ByteSpan more = input.bytes((change & 4) != 0 ? input.number() : 0);
    packet.insert(packet.end(), more.begin(), more.end());
  }
  std::vector<int> numbers;
  for (const OwnedFd& fd : descriptors) numbers.push_back(fd.get());
  if (numbers.size() > 8) numbers.resize(8);
  (void)send_packet(socket, packet, numbers);
}

void use(Handshake&& hands) {
  ProducerLink link(world().sim, world().listener.address(), std::move(hands));
  (void)link.register_tables(0);
  const Capacities& sizes = link.ledger().capacities();
  // Both ends of each table can be read.
  (void)link.ledger().export_word(0)->load();
  (void)link.ledger().export_word(sizes.exports - 1)->load();
  (void)link.ledger().piece(sizes.pieces - 1).word.load();
  const auto slot = link.row().take();
  require(slot.has_value(), "a new row has a free slot");
  link.row().view().claim(sizes.claims - 1)->store(0);
  link.row().view().mapped(sizes.pieces - 1)->store(0);
  link.wait({0, nullptr}, {.point = {0, sizes.timelines - 1, 0}});
}

LIMBO_FUZZ_TARGET(handshake) {
  Listener& listener = world().listener;
  listener.answer_next([bytes](int socket) { answer(bytes, socket); });
  try {
    use(shake_hands(listener.address(), world().own, kDeadline));
  } catch (const Error& refused) {
    switch (refused.code()) {
      case ErrorCode::kInternal:
      case ErrorCode::kBadArgument:
      case ErrorCode::kForkedChild:
        // What a producer refuses with is passed on by its code; none of ours.
        require(std::string(refused.what()).find("refuses") != std::string::npos,
                std::string("a bad welcome is no channel: ") + refused.what());
        break;
      default:
        break;
    }
  }
  listener.wait();
}

}  // namespace
}  // namespace limbo::fuzz::handshake
