// A consumer process of a benchmark, as its producer sees it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ipc/sharing.h"
#include "tests/bench/measured_device.h"
#include "tests/bench/samples.h"
#include "tests/support/child_process.h"

namespace limbo::bench {

// How many operations are enqueued before the stream is waited for, where nothing is to queue up: a
// stream takes about a thousand entries, and a GPU takes some of them more slowly than a host
// enqueues them.
inline constexpr std::size_t kOperationsAtOnce = 256;

// What the reader measured of its own operations.
struct ReaderTimes {
  Samples samples;
  CallTimes calls{};        // where they were asked for
  bool still_busy = false;  // the stream was busy from the first operation to the last
  std::uint64_t opens = 0;  // driver calls that mapped memory meanwhile
};

class Reader {
 public:
  // Starts the process, which takes a while to get its device: the first call waits for that.
  Reader();

  [[nodiscard]] pid_t pid() const noexcept { return child_.pid(); }

  // Hands over a message, to be opened by the next receive.
  void give(ByteSpan message);

  // Opens every message that was given, each timed. `calls`: times the device calls too, which
  // makes the operations slower. `device`: on another GPU than the owner's, on its default stream.
  ReaderTimes receive(bool calls = false, std::optional<int> device = {});
  // Gives back the `count` blocks that it has held longest, each timed; with `behind`, on a stream
  // that is busy so long.
  ReaderTimes release(std::size_t count, std::chrono::milliseconds behind, bool calls = false);
  // What it has released has landed.
  void settle();
  // Its GPU writes the block that it received last, for so long.
  void write(std::chrono::milliseconds duration);
  void kill_unreaped() { child_.kill_unreaped(); }
  // It gives everything back and ends.
  void finish();

 private:
  void send(std::string_view line);
  ReaderTimes times();

  testing::ChildProcess child_;
  bool ready_ = false;
};

}  // namespace limbo::bench
