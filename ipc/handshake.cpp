#include "ipc/handshake.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/lease_watch.h"
#include "ipc/life_line.h"
#include "ipc/messages.h"
#include "ipc/packet.h"
#include "ipc/runtime_directory.h"

namespace limbo {
namespace {

using Clock = std::chrono::steady_clock;

// For the text of an error: whether a process is stopped (by a signal or a debugger).
bool is_stopped(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t state = text.rfind(") ");  // the name may hold anything
  return state != std::string::npos && state + 2 < text.size() &&
         (text[state + 2] == 'T' || text[state + 2] == 't');
}

class Caller {
 public:
  Caller(const ProducerAddress& address, std::chrono::milliseconds deadline)
      : address_(address),
        directory_(RuntimeDirectory::open_existing(address.directory)),
        deadline_ms_(deadline.count()),
        until_(Clock::now() + deadline) {}

  Handshake call(const Incarnation& own, const std::optional<Decline>& promised) {
    connect();
    check_listener();
    const int life_line = life_line::far_end();
    Hello hello;
    hello.incarnation = own;
    hello.life_line_flags = life_line::flags();
    const int descriptors[Hello::kDescriptors] = {life_line};
    LIMBO_FAIL_POINT("connect.before_hello");
    if (!send_packet(result_.socket.get(), encode(hello), descriptors)) {
      const int error = errno;
      check_alive();
      // Refused before it was greeted: what it said then is there still.
      if (error == EPIPE || error == ECONNRESET) read_answer();
      fail(std::string("send: ") + std::strerror(error));
    }
    LIMBO_FAIL_POINT("connect.after_hello");
    result_.socket.has_said_hello();
    // Before the answer: one that cannot be taken ends the connection, and the promise with it.
    if (promised) result_.socket.owe(*promised);
    read_answer();
    LIMBO_FAIL_POINT("connect.after_welcome");
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::string path() const { return address_.directory + "/" + address_.socket_name; }

  [[noreturn]] void fail(const std::string& cause) const {
    throw Error(ErrorCode::kNoChannel,
                "The sender at " + path() + " cannot be reached: " + cause + ".",
                "Both processes must run as one user, on one machine, and see that directory.");
  }
  [[noreturn]] void unreachable(const char* call) const {
    fail(std::string(call) + ": " + std::strerror(errno));
  }
  [[noreturn]] void exited(const std::string& sign) const {
    throw Error(ErrorCode::kProducerExited,
                "The process that sent this has ended (" + path() + ": " + sign + ").",
                "Keep the sender alive until its messages are opened.");
  }

  void connect() {
    OwnedFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) unreachable("socket");
    const sockaddr_un where = directory_.address(address_.socket_name);
    while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) {
      // A socket gets its name when it listens already, so refused means that nobody is left.
      if (errno == ENOENT) exited("there is no such socket any more");
      if (errno == ECONNREFUSED) exited("nobody listens");
      if (errno != EAGAIN && errno != EINTR) unreachable("connect");
      if (Clock::now() >= until_) fail("its queue of connections is full");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    result_.socket = Connection(std::move(socket));
  }

  void check_listener() {
    PeerIdentity listener = identify_peer(result_.socket.get());
    if (listener.uid != ::geteuid()) {
      fail("it runs as user " + std::to_string(listener.uid) + ", not as " +
           std::to_string(::geteuid()));
    }
    // A fork child of a dead producer may hold the listener: connects succeed, nobody answers.
    if (listener.ended || is_readable(listener.pidfd.get())) {
      exited("a child of it keeps its socket open");
    }
    if (!listener.pidfd.valid()) fail("the kernel gives no pidfd for it");
    result_.pid = listener.pid;
    result_.pidfd = std::move(listener.pidfd);
  }

  void check_alive() const {
    if (ends_within(result_.pidfd.get(), kUntilDeathIsSeen)) {
      exited("it ended during the handshake");
    }
  }

  void wait_readable() {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now());
    pollfd entries[2] = {{result_.socket.get(), POLLIN, 0}, {result_.pidfd.get(), POLLIN, 0}};
    const int ready = ::poll(entries, 2, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) return;
    if (ready < 0) unreachable("poll");
    if (ready == 0) {
      fail("no answer within " + std::to_string(deadline_ms_) + " ms; " +
           (is_stopped(result_.pid) ? "process " + std::to_string(result_.pid) + " is stopped"
                                    : "it is stopped, or very busy"));
    }
    if (entries[0].revents == 0) exited("it ended during the handshake");
  }

  void read_answer() {
    Packet packet;
    PacketStatus status = PacketStatus::kNothing;
    while (status == PacketStatus::kNothing) {
      wait_readable();
      status = receive_packet(result_.socket.get(), packet);
    }
    if (status == PacketStatus::kClosed) {
      check_alive();
      fail("it closed the connection");
    }
    MessageHeader header;
    const std::string wrong = check_frame(packet.bytes, packet.descriptors.size(), header);
    if (packet.cut) fail("its answer is too long");
    if (header.version != kMessageVersion) {
      throw Error(ErrorCode::kNoChannel,
                  "The sender at " + path() + " is of another version of Limbo: " + wrong + ".",
                  "Use the same version of Limbo in both processes.");
    }
    if (!wrong.empty()) fail(wrong);
    const auto type = static_cast<MessageType>(header.type);
    Refused refused;
    if ((type == MessageType::kRefused || type == MessageType::kError) &&
        decode(packet.bytes, refused)) {
      throw Error(refused.code, "The sender at " + path() + " refuses: " + refused.text + ".");
    }
    Welcome welcome;
    if (type != MessageType::kWelcome || !decode(packet.bytes, welcome)) {
      fail("its answer is not a welcome");
    }
    accept(welcome, packet);
  }

  void accept(const Welcome& welcome, Packet& packet) {
    if (welcome.incarnation != address_.incarnation) fail("somebody else listens there");
    result_.lease_number = welcome.lease_number;
    result_.life_line_flags = welcome.life_line_flags;
    result_.capacities = welcome.capacities;
    result_.ledger = std::move(packet.descriptors[0]);
    result_.timelines = std::move(packet.descriptors[1]);
    result_.row = std::move(packet.descriptors[2]);
    result_.life_line = std::move(packet.descriptors[3]);
    result_.own_timelines = std::move(packet.descriptors[4]);
    if (!is_life_line(result_.life_line.get())) fail("its life line is none");
  }

  const ProducerAddress& address_;
  const RuntimeDirectory directory_;
  const std::int64_t deadline_ms_;
  const Clock::time_point until_;
  Handshake result_;
};

}  // namespace

Handshake shake_hands(const ProducerAddress& address, const Incarnation& own,
                      std::chrono::milliseconds deadline, const std::optional<Decline>& promised) {
  return Caller(address, deadline).call(own, promised);
}

}  // namespace limbo
