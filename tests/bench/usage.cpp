#include "tests/bench/usage.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/bench/process.h"

namespace limbo::bench {
namespace {

std::int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  std::int64_t sum = 0;
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kib = 0;
    words >> name >> kib;
    if (name == "RssAnon:" || name == "RssShmem:") sum += kib;
  }
  return sum;
}

std::int64_t descriptors() {
  namespace fs = std::filesystem;
  std::int64_t count = -1;  // the iterator's own
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (!target.starts_with("/dev/nvidia")) ++count;
  }
  return count;
}

std::int64_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::int64_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

}  // namespace

Usage usage_now() {
  const MemoryInfo memory = device().memory_info(0);
  return {resident_kib(),
          descriptors(),
          mappings(),
          device().events_alive(),
          allocator().stats(0).reserved_bytes[0].current / 1024,
          static_cast<std::int64_t>((memory.total_bytes - memory.free_bytes) / 1024)};
}

std::string grown(const Usage& before, const Usage& after) {
  std::string text;
  for (std::size_t kind = 0; kind < kUses.size(); ++kind) {
    const std::int64_t more = after[kind] - before[kind];
    if (more <= kUses[kind].tolerance) continue;
    text +=
        (text.empty() ? "" : ", ") + std::string(kUses[kind].name) + " by " + std::to_string(more);
  }
  return text;
}

}  // namespace limbo::bench
