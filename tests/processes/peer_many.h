// Commands of a peer that stand for thousands of others.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ipc/sharing.h"

namespace limbo::testing {

// "repeat COUNT COMMAND...": with every % replaced by the number; "receive_many PREFIX MESSAGE...
// [on DEVICE]": as PREFIX0, PREFIX1, ... The answers, joined; nothing when the command is another's.
// "receive_by_threads THREADS VALUE MESSAGE...": the threads receive, check and release the messages in
// turn. How many were right.
// "receive_at_once DEVICE MESSAGE [DEVICE MESSAGE]...": each by a thread of its own (device -1: the
// owner's), and let go when all are through. The codes of their errors, "none" for those that were
// received.
[[nodiscard]] std::optional<std::string> run_many(
    const std::string& command, std::istringstream& words,
    const std::function<std::string(const std::string&)>& run);

// Drops one block at a time, on a thread of its own.
class AsideThread {
 public:
  AsideThread() = default;
  ~AsideThread() { join(); }
  AsideThread(const AsideThread&) = delete;
  AsideThread& operator=(const AsideThread&) = delete;

  void drop(std::unique_ptr<ReceivedBlock> block);
  void join();

 private:
  std::thread thread_;
};

// `count` threads drop the blocks in turn.
void drop_by_many_threads(std::size_t count, std::vector<std::unique_ptr<ReceivedBlock>> blocks);

}  // namespace limbo::testing
