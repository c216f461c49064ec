// How descriptors travel: one inbox for every slot, which outlives the processes that take it.
//
// A message is lost when its inbox is full or its reader dies; it may be delivered twice, and to
// somebody who was born after it was sent. So it is with any road outside of Limbo.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/owned_fd.h"
#include "ipc/sharing.h"

namespace limbo::killmatrix {

struct Sender {
  std::uint32_t slot = 0;
  std::uint32_t incarnation = 0;  // 0: nobody
};

struct Letter {
  Sender from;                  // the block's owner
  std::uint32_t canary = 0;     // what every word of the block holds
  std::uint32_t exclusive = 0;  // 1: its receiver is the only one, and may write
  std::uint32_t must_open = 0;  // 1: delivered once, with no time limit, never withdrawn
  Sender by{};                  // who has sent it on; what that one had queued may not come, either
  // Who had sent it on before, where nobody has seen since then that the contents had come.
  std::array<Sender, 3> before{};
  // What is sent on has a time limit, since a dead one's cannot be withdrawn: must_open ends then.
  std::uint64_t must_open_until_us = ~std::uint64_t{0};
};

struct Mail {
  Letter letter;
  Bytes descriptor;
};

class Post {
 public:
  explicit Post(std::uint32_t slots);  // throws std::runtime_error

  // False when the inbox is full.
  bool send(std::uint32_t slot, const Mail& mail) noexcept;
  [[nodiscard]] std::optional<Mail> take(std::uint32_t slot);
  // Of the inbox of `slot`, to wait on.
  [[nodiscard]] int fd(std::uint32_t slot) const { return boxes_[slot].read_end.get(); }

 private:
  struct Box {
    OwnedFd read_end;
    OwnedFd write_end;
  };
  std::vector<Box> boxes_;
};

}  // namespace limbo::killmatrix
