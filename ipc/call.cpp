#include "ipc/call.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "allocator/error.h"
#include "ipc/messages.h"

namespace limbo {

Call::Call(const ProducerAddress& address, std::chrono::milliseconds deadline)
    : address_(address),
      directory_(RuntimeDirectory::open_existing(address.directory)),
      deadline_ms_(deadline.count()),
      until_(Clock::now() + deadline) {
  connect();
  check_listener();
}

void Call::fail(const std::string& cause) const {
  throw Error(ErrorCode::kNoChannel,
              "The process at " + path() + " cannot be asked: " + cause + ".",
              "Both processes must run as one user, on one machine, and see that directory.");
}

void Call::exited(const std::string& sign) const {
  throw Error(ErrorCode::kProducerExited,
              "The process at " + path() + " has ended (" + sign + ").");
}

void Call::connect() {
  socket_ = OwnedFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.valid()) fail(std::string("socket: ") + std::strerror(errno));
  const sockaddr_un where = directory_.address(address_.socket_name);
  while (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) {
    if (errno == ENOENT) exited("there is no such socket any more");
    if (errno == ECONNREFUSED) exited("nobody listens");
    if (errno != EAGAIN && errno != EINTR) fail(std::string("connect: ") + std::strerror(errno));
    if (Clock::now() >= until_) fail("its queue of connections is full");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Call::check_listener() {
  PeerIdentity listener = identify_peer(socket_.get());
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

void Call::wait_readable() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now());
  pollfd entries[2] = {{socket_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
  const int ready = ::poll(entries, 2, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  if (ready < 0 && errno != EINTR) fail(std::string("poll: ") + std::strerror(errno));
  if (ready == 0) {
    fail("no answer within " + std::to_string(deadline_ms_) +
         " ms; it is stopped, or very busy (process " + std::to_string(pid_) + ")");
  }
  if (ready > 0 && entries[0].revents == 0) exited("it ended before it answered");
}

void Call::send(std::span<const std::byte> message) const {
  if (send_packet(socket_.get(), message)) return;
  const int cause = errno;
  if (is_readable(pidfd_.get())) exited("it takes no messages");
  fail(std::string("send: ") + std::strerror(cause));
}

Packet Call::answer(MessageType& type) const {
  Packet packet;
  PacketStatus status = PacketStatus::kNothing;
  while (status == PacketStatus::kNothing) {
    wait_readable();
    status = receive_packet(socket_.get(), packet);
  }
  if (status == PacketStatus::kClosed) {
    if (is_readable(pidfd_.get())) exited("it ended before it answered");
    fail("it closed the connection");
  }
  MessageHeader header;
  const std::string wrong = check_frame(packet.bytes, packet.descriptors.size(), header);
  if (packet.cut) fail("its answer is too long");
  if (!wrong.empty()) fail(wrong);
  type = static_cast<MessageType>(header.type);
  Refused refused;
  if ((type == MessageType::kRefused || type == MessageType::kError) &&
      decode(packet.bytes, refused)) {
    throw Error(refused.code, refused.text);
  }
  return packet;
}

}  // namespace limbo
