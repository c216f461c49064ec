// The producer's end of the channel, fed with any packets and descriptors.
//
// The input is a list of actions on connections to a real channel, which keeps a real producer's
// leases: raw packets, messages with a right frame, hello in many forms, questions, bytes in the life
// line, closing this or that. Every answer must be a message that a consumer can decode; when the
// connection is closed the channel closes its end; the leases end with their life lines.
#include <poll.h>
#include <sys/un.h>

#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "allocator/error.h"
#include "ipc/channel.h"
#include "ipc/incarnation.h"
#include "ipc/life_line.h"
#include "ipc/messages.h"
#include "ipc/packet.h"
#include "ipc/questions.h"
#include "tests/fuzz/channel_support.h"
#include "tests/fuzz/target.h"
#include "tests/support/eventually.h"
#include "tests/unit/producer_support.h"

namespace limbo::fuzz::channel {
namespace {

constexpr std::size_t kMostActions = 48;
constexpr int kAnswerWithin_ms = 30'000;  // of a busy machine

// A lease whose life line is closed lives for 2 s more, since its process has not ended: so many at
// a time.
constexpr std::size_t kMostLeases = 800;

// All peers are of this process; what waits of one connection is bounded so that it is met.
constexpr ChannelBounds kBounds{
    .leases = 2 * kMostLeases, .strangers = 2 * kMostLeases, .undone = 4, .unheard = 3};

// One that says that its line proves nothing would keep its lease until its process ends, which is
// this one: that flag is taken out of whatever may be a hello.
constexpr std::size_t kHelloBytes = 32;
constexpr std::size_t kHelloFlagsAt = 28;

// What is published; long, so that the list needs parts.
// Never destroyed: threads still ask for it when the program ends.
constexpr protocol::ClaimTarget kAcquired{3, 4};
const std::string& kName = *new std::string(200, 'n');

// Keeps a producer's leases, and answers questions about it; one name is published.
class ProducersKeeper : public LeaseKeeper, public Answerer {
 public:
  explicit ProducersKeeper(Producer& producer) : producer_(producer) {}
  LeaseGrant add_lease(const LeasePeer& peer) override {
    const LeaseGrant grant = producer_.add_lease(peer);
    const std::lock_guard lock(mutex_);
    leases_.insert(grant.lease_number);
    return grant;
  }
  void lease_gone(std::uint32_t lease, const std::string& why) override {
    producer_.lease_gone(lease, why);
  }
  void lease_quiet(std::uint32_t lease) override {
    producer_.lease_quiet(lease);
    over(lease);
  }
  void decline(std::uint32_t lease, std::uint32_t index, std::uint64_t generation) override {
    producer_.decline(lease, index, generation);
  }
  void row_half_full(std::uint32_t lease) override { producer_.row_half_full(lease); }
  void context_lost(std::uint32_t lease) override { producer_.lease_lost_context(lease); }
  bool lease_left(std::uint32_t lease) override {
    const bool left = producer_.lease_left(lease);
    if (left) over(lease);
    return left;
  }
  [[nodiscard]] std::size_t leases() {
    const std::lock_guard lock(mutex_);
    return leases_.size();
  }

  Acquired acquire_for_other(const std::string& name) override {
    if (name != kName) throw Error(ErrorCode::kNoSuchName, "Nobody publishes \"" + name + "\".");
    return {Bytes(100), kAcquired};
  }
  void not_delivered(const protocol::ClaimTarget& made) override {
    require(made == kAcquired, "what was not delivered is what was acquired");
  }
  std::vector<std::string> published() override { return std::vector<std::string>(90, kName); }
  std::vector<Holder> lent_to() override { return producer_.holders(); }
  Reaped reaped() override {
    SharingStats stats;
    producer_.add_stats(stats);
    return {stats.leases_swept, stats.claims_swept};
  }
  protocol::ClaimTarget forward(std::uint32_t lease, const ForwardRequest& request, int pidfd,
                                int life_line, std::uint32_t flags) override {
    return producer_.forward(lease, request, pidfd, life_line, flags);
  }
  ForwarderFiles forwarder_files(std::uint32_t lease) override {
    return producer_.forwarder_files(lease);
  }
  bool complete_waits(std::uint32_t lease) override { return producer_.complete_waits(lease); }
  void heard(std::uint32_t lease, const protocol::ClaimTarget& made) override {
    producer_.heard(lease, made);
  }
  void hears_no_more(std::uint32_t lease) override { producer_.hears_no_more(lease); }
  void lease_forced(std::uint32_t lease) override {
    producer_.lease_forced(lease);
    over(lease);
  }
  void take_back(std::uint32_t lease, std::uint32_t index, std::uint64_t generation) override {
    producer_.take_back(lease, index, generation);
  }

 private:
  // Told twice of some: who says bye twice, or dies meanwhile.
  void over(std::uint32_t lease) {
    const std::lock_guard lock(mutex_);
    leases_.erase(lease);
  }

  Producer& producer_;
  std::mutex mutex_;  // guards leases_
  std::set<std::uint32_t> leases_;
};

// One for all inputs.
struct World {
  World() {
    allocator.set_lender(&producer);
    data = allocator.allocate(4096, {});
    ticket = producer.share(data, 4096, {});
  }

  SimDevice& sim = *testing::make_sim().release();
  Allocator allocator{sim};
  Producer producer{sim,
                    allocator,
                    Incarnation{1, 2},
                    {.exports = 32, .pieces = 8, .claims = 512, .timelines = 4}};
  ProducersKeeper keeper{producer};
  ServiceThread reaper{"fuzz-reaper"};
  ServiceThread worker{"fuzz-worker"};
  const Incarnation incarnation = random_incarnation();
  Channel channel{reaper, worker, keeper, incarnation, &keeper, kBounds};
  void* data = nullptr;
  ExportTicket ticket;
};

World& world() {
  static World& made = *new World;
  return made;
}

class Connection {
 public:
  Connection() : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const auto directory = RuntimeDirectory::open_existing(world().channel.directory());
    const sockaddr_un where = directory.address(world().channel.socket_name());
    while (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) !=
           0) {
      require(errno == EAGAIN || errno == EINTR, "the listener goes on");
      std::this_thread::yield();
    }
  }
  ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

  void send(ByteSpan packet, const std::vector<OwnedFd>& descriptors) {
    Bytes bytes(packet.begin(), packet.end());
    if (bytes.size() == kHelloBytes)
      bytes[kHelloFlagsAt] &= ~std::byte{life_line::kLateWithChildren};
    std::vector<int> numbers;
    for (const OwnedFd& fd : descriptors) numbers.push_back(fd.get());
    while (!send_packet(socket_.get(), bytes, numbers)) {
      if (errno != EAGAIN) return;  // closed by the channel, or more than a socket takes
      require(becomes(POLLIN | POLLOUT), "the channel goes on reading");
      read_answers();
    }
    read_answers();
  }

  // Reads until the channel has closed its end, which it does when everything is read.
  void finish() {
    ::shutdown(socket_.get(), SHUT_WR);
    while (!closed_) {
      require(becomes(POLLIN), "a closed connection is closed by both");
      read_answers();
    }
  }

 private:
  // libFuzzer's alarm may interrupt the waiting.
  [[nodiscard]] bool becomes(short events) const {
    pollfd entry{socket_.get(), events, 0};
    int ready = -1;
    do {
      ready = ::poll(&entry, 1, kAnswerWithin_ms);
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
  }
  void read_answers() {
    for (;;) {
      Packet packet;
      const PacketStatus status = receive_packet(socket_.get(), packet);
      if (status == PacketStatus::kNothing) return;
      if (status == PacketStatus::kClosed) {
        closed_ = true;
        return;
      }
      check(packet);
    }
  }
  static void check(const Packet& packet) {
    MessageHeader header;
    const std::string wrong = check_frame(packet.bytes, packet.descriptors.size(), header);
    require(!packet.cut && wrong.empty(), "an answer is a message: " + wrong);
    Refused refused;
    Welcome welcome;
    Answer answer;
    Forwarded forwarded;
    GivenTimelines timelines;
    AskedInVain in_vain;
    switch (static_cast<MessageType>(header.type)) {
      case MessageType::kWelcome:
        return require(decode(packet.bytes, welcome) && welcome.incarnation == world().incarnation,
                       "a welcome can be decoded");
      case MessageType::kAnswer:
        return require(decode(packet.bytes, answer), "an answer can be decoded");
      case MessageType::kForwarded:
        return require(decode(packet.bytes, forwarded), "what was forwarded can be decoded");
      case MessageType::kTimelines:
        return require(decode(packet.bytes, timelines), "timelines can be decoded");
      case MessageType::kAskedInVain:
        return require(decode(packet.bytes, in_vain) && !in_vain.text.empty(),
                       "who asks in vain is told why");
      case MessageType::kRefused:
      case MessageType::kError:
        return require(decode(packet.bytes, refused) && !refused.text.empty(),
                       "an error has a code and a text");
      default:
        require(false, "what comes back is a welcome, an answer or a refusal");
    }
  }

  OwnedFd socket_;
  bool closed_ = false;
};

class Peer {
 public:
  void act(Input& input);
  ~Peer() = default;
  // Politely: then a lease that it has is over at once.
  void finish(bool says_bye = true) {
    if (says_bye) connection_->send(encode_bye(), {});
    connection_->finish();
  }

 private:
  std::vector<OwnedFd> some_descriptors(Input& input) {
    std::vector<OwnedFd> made;
    const std::size_t count = input.below(8);
    for (std::size_t i = 0; i < count; ++i) {
      made.push_back(make_any(input.number(), connection_->fd(), kept_));
    }
    return made;
  }
  void say_hello(Input& input);
  void say_typed(Input& input);
  void ask(Input& input);

  std::unique_ptr<Connection> connection_ = std::make_unique<Connection>();
  std::vector<OwnedFd> kept_;  // closed at the end, or before
};

// A right one, but for what the input changes.
void Peer::say_hello(Input& input) {
  Hello hello;
  hello.incarnation = {1 + std::uint64_t{input.number()}, 1};
  const std::uint8_t change = input.number();
  if ((change & 1) != 0) hello.life_line_flags = input.number<std::uint32_t>();
  if ((change & 2) != 0) hello.ledger_version = input.number<std::uint32_t>();
  std::vector<OwnedFd> descriptors;
  if ((change & 4) != 0) {
    descriptors = some_descriptors(input);
  } else {
    descriptors.push_back(make_life_line(kept_));
  }
  connection_->send(encode(hello), descriptors);
}

void Peer::say_typed(Input& input) {
  FieldWriter out;
  out.number(static_cast<std::uint16_t>(input.below(24)));
  out.number(input.below(8) == 0 ? input.number<std::uint16_t>() : kMessageVersion);
  const ByteSpan fields = input.bytes(input.number());
  out.number(static_cast<std::uint32_t>(fields.size() + kMessageHeaderBytes));
  out.raw(fields);
  connection_->send(out.take(), some_descriptors(input));
}

void Peer::ask(Input& input) {
  constexpr MessageType kTypes[] = {MessageType::kPublishList, MessageType::kAcquire,
                                    MessageType::kReap, MessageType::kHolders};
  Question question;
  question.type = kTypes[input.below(std::size(kTypes))];
  const std::uint8_t value = input.number();
  question.from = value % 128;
  question.force = value % 2 == 1;
  question.name = value < 128 ? kName : std::string(value, 'x');
  connection_->send(encode(question), {});
}

void Peer::act(Input& input) {
  switch (input.below(9)) {
    case 0: {
      const ByteSpan packet = input.bytes(input.number<std::uint16_t>() % 5000);
      return connection_->send(packet, some_descriptors(input));
    }
    case 1:
      return say_typed(input);
    case 2:
      return say_hello(input);
    case 3:
      return connection_->send(
          encode(input.below(2) == 0
                     ? Decline{world().ticket.export_index, world().ticket.generation}
                     : Decline{input.number<std::uint32_t>() & protocol::kMaxExportIndex,
                               input.number<std::uint64_t>() & protocol::kMaxGeneration}),
          {});
    case 4:
      return connection_->send(encode_row_half_full(), {});
    case 5:
      for (const OwnedFd& fd : kept_) (void)!::write(fd.get(), "bytes", input.below(6));
      return;
    case 6:
      kept_.clear();
      return;
    case 7:
      return ask(input);
    default:
      finish(input.below(8) != 0);
      connection_ = std::make_unique<Connection>();
  }
}

LIMBO_FUZZ_TARGET(channel) {
  Input input(bytes);
  {
    Peer peer;
    for (std::size_t action = 0; action < kMostActions && input.left() > 0; ++action) {
      peer.act(input);
    }
    peer.finish();
  }
  if (world().keeper.leases() >= kMostLeases) {
    require(testing::eventually([] { return world().keeper.leases() == 0; }),
            "a lease ends with its life line");
  }
  world().producer.check_invariants();
}

}  // namespace
}  // namespace limbo::fuzz::channel
