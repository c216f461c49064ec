// The socket between a client and its companion: requests and replies with descriptors.
//
// The client's end is the "driver's file descriptor": fork children inherit it, exec closes it, and
// the companion works for as long as any copy of it is open.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/device/sim_machine.h"

namespace limbo::sim {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.take()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int take() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

enum class RequestKind : std::uint32_t {
  kHello = 1,       // descriptors: the queues' memfd, the doorbell
  kRegister,        // descriptor: host memory of `size_bytes`, known as `id` from now on
  kUnregister,      // `id`
  kHoldDescriptor,  // descriptor: kept open until the companion ends
};

struct Request {
  RequestKind kind = RequestKind::kHello;
  std::uint32_t id = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t writable = 0;
};

// The answer to every request. `error` empty: it was done. Hello brings the machine's file.
struct Reply {
  ProcessTicket ticket;
  std::int64_t companion_pid = 0;
  char error[400] = {};

  void set_error(std::string_view text) noexcept;
};

// Blocks until sent. False when the other end is closed.
[[nodiscard]] bool send_message(int socket, const void* data, std::size_t size_bytes,
                                std::span<const int> descriptors);

// Blocks until a message comes. False when the other end is closed, or sent something else.
[[nodiscard]] bool receive_message(int socket, void* data, std::size_t size_bytes,
                                   std::vector<Descriptor>& descriptors);

}  // namespace limbo::sim
