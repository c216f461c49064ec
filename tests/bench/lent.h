// Blocks that a benchmark allocates, shares and frees, many at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "ipc/sharing.h"
#include "tests/bench/reader.h"
#include "tests/bench/samples.h"

namespace limbo::bench {

class LentBlocks {
 public:
  LentBlocks(std::size_t count, std::size_t size_bytes, StreamRef stream);
  // Frees what is left.
  ~LentBlocks();
  LentBlocks(const LentBlocks&) = delete;
  LentBlocks& operator=(const LentBlocks&) = delete;

  // Shares each block once, timed, with `calls` if given also the device calls. Waits for the
  // stream in between, so that nothing queues up there, unless `behind` says that it is to.
  Samples share_all(CallTimes* calls = nullptr, bool behind = false);
  // Hands every message to `reader`.
  void give_all(Reader& reader) const;
  [[nodiscard]] const std::vector<Bytes>& messages() const noexcept { return messages_; }

  void withdraw_all();
  void free_all();

 private:
  const std::size_t size_bytes_;
  const StreamRef stream_;
  std::vector<void*> blocks_;
  std::vector<Bytes> messages_;
};

// Waits until nothing is lent and nothing is in limbo. Throws std::runtime_error where that does not
// come.
void wait_until_all_is_back();

}  // namespace limbo::bench
