// Recorded allocation traces: what a real program asked of its allocator, to be replayed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace limbo::testing {

struct TraceEvent {
  bool allocate = false;       // else the block is freed
  std::uint32_t block = 0;     // dense: 0 to Trace::block_count - 1
  std::size_t size_bytes = 0;  // of an allocation
  std::uint32_t stream = 0;    // of an allocation: 0 to Trace::stream_count - 1
};

struct Trace {
  std::vector<TraceEvent> events;
  std::uint32_t block_count = 0;
  std::uint32_t stream_count = 0;
  std::size_t peak_bytes = 0;  // the most that was allocated at once, as asked for
};

// Reads a text trace, or one compressed by gzip where the tests were built with zlib. The format
// stands in tests/data/README.md. Throws std::runtime_error with file, line and reason: a line that
// is no event, a block freed twice or never allocated or allocated twice, a file that cannot be
// read.
[[nodiscard]] Trace read_trace(const std::filesystem::path& path);

// A file of tests/data: under LIMBO_TEST_DATA where that is set, else in the source tree.
[[nodiscard]] std::filesystem::path test_data(const char* name);

}  // namespace limbo::testing
