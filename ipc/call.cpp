#include "ipc/call.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "allocator/error.h"

namespace limbo {
namespace {

// For the text of an error: whether a process is stopped (by a signal or a debugger).
bool is_stopped(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t state = text.rfind(") ");  // the name may hold anything
  return state != std::string::npos && state + 2 < text.size() &&
         (text[state + 2] == 'T' || text[state + 2] == 't');
}

}  // namespace

Call::Call(const ProducerAddress& address, std::chrono::milliseconds deadline,
           const CallWords& words)
    : address_(address),
      directory_(RuntimeDirectory::open_existing(address.directory)),
      deadline_ms_(deadline.count()),
      until_(Clock::now() + deadline),
      words_(words) {
  connect();
  check_listener();
}

std::string Call::whom() const {
  return std::string(words_.who) + " at " + address_.directory + "/" + address_.socket_name;
}

void Call::fail(const std::string& cause) const {
  throw Error(ErrorCode::kNoChannel, whom() + " cannot " + words_.cannot + ": " + cause + ".",
              "Both processes must run as one user, on one machine, and see that directory.");
}

void Call::exited(const std::string& sign) const {
  throw Error(ErrorCode::kProducerExited,
              std::string(words_.has_ended) + " (" + address_.directory + "/" +
                  address_.socket_name + ": " + sign + ").",
              words_.while_alive);
}

void Call::connect() {
  OwnedFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) fail(std::string("socket: ") + std::strerror(errno));
  const sockaddr_un where = directory_.address(address_.socket_name);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) {
    // A socket gets its name when it listens already, so refused means that nobody is left.
    if (errno == ENOENT) exited("there is no such socket any more");
    if (errno == ECONNREFUSED) exited("nobody listens");
    if (errno != EAGAIN && errno != EINTR) fail(std::string("connect: ") + std::strerror(errno));
    if (Clock::now() >= until_) fail("its queue of connections is full");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  connection_ = Connection(std::move(socket));
}

void Call::check_listener() {
  PeerIdentity listener = identify_peer(connection_.get());
  if (listener.uid != ::geteuid()) {
    fail("it runs as user " + std::to_string(listener.uid) + ", not as " +
         std::to_string(::geteuid()));
  }
  // A fork child of a dead process may hold its listener: connects succeed, nobody answers.
  if (listener.ended || is_readable(listener.pidfd.get())) {
    exited("a child of it keeps its socket open");
  }
  if (!listener.pidfd.valid()) fail("the kernel gives no pidfd for it");
  pid_ = listener.pid;
  pidfd_ = std::move(listener.pidfd);
}

void Call::check_alive() const {
  if (ends_within(pidfd_.get(), kUntilDeathIsSeen)) exited("it ended before it answered");
}

void Call::wait_readable() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now());
  pollfd entries[2] = {{connection_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
  const int ready = ::poll(entries, 2, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  if (ready < 0 && errno == EINTR) return;
  if (ready < 0) fail(std::string("poll: ") + std::strerror(errno));
  if (ready == 0) {
    const std::string process = "process " + std::to_string(pid_);
    fail("no answer within " + std::to_string(deadline_ms_) + " ms; " +
         (is_stopped(pid_) ? process + " is stopped"
                           : "it is stopped, or very busy (" + process + ")"));
  }
  if (entries[0].revents == 0) exited("it ended before it answered");
}

void Call::send(std::span<const std::byte> message, std::span<const int> descriptors) const {
  if (send_packet(connection_.get(), message, descriptors)) return;
  const int cause = errno;
  check_alive();
  if (cause == EPIPE || cause == ECONNRESET) {
    // Refused before it was spoken to: what it said then is there still.
    MessageType type{};
    (void)answer(type);
  }
  fail(std::string("send: ") + std::strerror(cause));
}

Packet Call::answer(MessageType& type) const {
  Packet packet;
  PacketStatus status = PacketStatus::kNothing;
  while (status == PacketStatus::kNothing) {
    wait_readable();
    status = receive_packet(connection_.get(), packet);
  }
  if (status == PacketStatus::kClosed) {
    check_alive();
    fail("it closed the connection");
  }
  MessageHeader header;
  const std::string wrong = check_frame(packet.bytes, packet.descriptors.size(), header);
  if (packet.cut) fail("its answer is too long");
  if (header.version != kMessageVersion) {
    throw Error(ErrorCode::kNoChannel, whom() + " is of another version of Limbo: " + wrong + ".",
                "Use the same version of Limbo in both processes.");
  }
  if (!wrong.empty()) fail(wrong);
  type = static_cast<MessageType>(header.type);
  Refused refused;
  if ((type == MessageType::kRefused || type == MessageType::kError) &&
      decode(packet.bytes, refused)) {
    throw Error(refused.code,
                words_.names_refuser ? whom() + " refuses: " + refused.text + "." : refused.text);
  }
  return packet;
}

}  // namespace limbo
