#include "tests/support/trace.h"

#ifdef LIMBO_HAVE_ZLIB
#include <zlib.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

namespace limbo::testing {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& reason) {
  throw std::runtime_error("trace " + path.string() + ": " + reason);
}

#ifdef LIMBO_HAVE_ZLIB
// zlib reads plain text as it is.
std::string contents(const std::filesystem::path& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) fail(path, "cannot be opened");
  std::string text;
  char chunk[1 << 16];
  int got = 0;
  while ((got = gzread(file, chunk, sizeof(chunk))) > 0) {
    text.append(chunk, static_cast<std::size_t>(got));
  }
  int error = Z_OK;
  const std::string reason = gzerror(file, &error);
  gzclose(file);
  if (got < 0) fail(path, reason);
  return text;
}
#else
std::string contents(const std::filesystem::path& path) {
  if (path.extension() == ".gz")
    fail(path, "is compressed, and the tests were built without zlib: install zlib1g-dev");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}
#endif

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {}

  Trace read() {
    std::istringstream lines(contents(path_));
    for (std::string line; std::getline(lines, line);) {
      ++line_number_;
      if (!line.empty()) take(line);
    }
    trace_.stream_count = static_cast<std::uint32_t>(streams_.size());
    return std::move(trace_);
  }

 private:
  struct Live {
    std::uint32_t block = 0;
    std::size_t size_bytes = 0;
  };

  [[noreturn]] void bad_line(const std::string& reason) const {
    fail(path_, "line " + std::to_string(line_number_) + ": " + reason);
  }

  void take(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    std::uint64_t id = 0;
    words >> verb >> id;
    if (!words || (verb != "a" && verb != "f")) bad_line("\"" + line + "\" is no event");
    if (verb == "f") {
      take_free(id);
      return;
    }
    TraceEvent event;
    std::uint64_t stream = 0;
    words >> event.size_bytes >> stream;
    if (!words) bad_line("\"" + line + "\" lacks a size or a stream");
    event.allocate = true;
    event.block = trace_.block_count;
    event.stream =
        streams_.emplace(stream, static_cast<std::uint32_t>(streams_.size())).first->second;
    if (!live_.emplace(id, Live{event.block, event.size_bytes}).second) {
      bad_line("block " + std::to_string(id) + " is allocated while it is");
    }
    ++trace_.block_count;
    live_bytes_ += event.size_bytes;
    trace_.peak_bytes = std::max(trace_.peak_bytes, live_bytes_);
    trace_.events.push_back(event);
  }

  void take_free(std::uint64_t id) {
    const auto found = live_.find(id);
    if (found == live_.end()) {
      bad_line("block " + std::to_string(id) + " is freed and not allocated");
    }
    TraceEvent event;
    event.block = found->second.block;
    live_bytes_ -= found->second.size_bytes;
    live_.erase(found);
    trace_.events.push_back(event);
  }

  std::filesystem::path path_;
  std::size_t line_number_ = 0;
  Trace trace_;
  std::map<std::uint64_t, Live> live_;              // by the file's ID
  std::map<std::uint64_t, std::uint32_t> streams_;  // the file's number to a dense one
  std::size_t live_bytes_ = 0;
};

}  // namespace

Trace read_trace(const std::filesystem::path& path) {
  return Reader(path).read();
}

std::filesystem::path test_data(const char* name) {
  const char* folder = std::getenv("LIMBO_TEST_DATA");
  return std::filesystem::path(folder != nullptr ? folder : LIMBO_TEST_DATA_DIR) / name;
}

}  // namespace limbo::testing
