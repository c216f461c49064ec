#include "tests/support/balance.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/eventually.h"

namespace limbo::testing {
namespace {

namespace fs = std::filesystem;

std::multiset<std::string> open_descriptors() {
  std::multiset<std::string> result;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const std::string target = fs::read_symlink(entry.path(), error).string();
    // The iterator's own descriptor; and those of NVIDIA's driver, which opens them as it likes.
    if (error || target.ends_with("/fd") || target.starts_with("/dev/nvidia")) continue;
    // Sockets and pipes are named by inode; their kind is what can be compared.
    const bool by_inode = target.starts_with("socket:[") || target.starts_with("pipe:[");
    result.insert(by_inode ? target.substr(0, target.find(':')) : target);
  }
  return result;
}

std::set<std::string> files_under(const fs::path& folder) {
  std::set<std::string> result;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    result.insert(it->path().string());
  }
  return result;
}

std::multiset<std::string> shared_mappings() {
  std::multiset<std::string> result;
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    const std::size_t name = line.find('/');
    if (name == std::string::npos) continue;
    const std::string target = line.substr(name);
    if (target.starts_with("/memfd:") || target.starts_with("/dev/shm/")) result.insert(target);
  }
  return result;
}

template <typename Set>
void list_additions(const char* what, const Set& before, const Set& after, std::string& text) {
  for (auto it = after.begin(); it != after.end(); it = after.upper_bound(*it)) {
    const std::size_t had = before.count(*it);
    const std::size_t has = after.count(*it);
    if (has <= had) continue;
    text += std::string(what) + " " + *it + ": " + std::to_string(has) + ", before " +
            std::to_string(had) + "\n";
  }
}

}  // namespace

Balance Balance::now() {
  Balance balance;
  balance.descriptors = open_descriptors();
  for (const std::string& entry : files_under("/dev/shm")) {
    // Other programs of the machine come and go there.
    if (entry.find("limbo") != std::string::npos) balance.shared_memory.insert(entry);
  }
  const char* runtime_dir = std::getenv("LIMBO_RUNTIME_DIR");
  if (runtime_dir != nullptr) balance.runtime_files = files_under(runtime_dir);
  balance.memfd_mappings = shared_mappings();
  return balance;
}

std::string left_behind(const Balance& before, const Balance& after) {
  std::string text;
  list_additions("descriptors of", before.descriptors, after.descriptors, text);
  list_additions("shared memory", before.shared_memory, after.shared_memory, text);
  list_additions("file", before.runtime_files, after.runtime_files, text);
  list_additions("mappings of", before.memfd_mappings, after.memfd_mappings, text);
  return text;
}

void BalancedTest::SetUp() {
  warm_up();
  before_ = Balance::now();
}

void BalancedTest::TearDown() {
  const bool balanced = eventually([&] { return left_behind(before_, Balance::now()).empty(); },
                                   std::chrono::seconds(5));
  EXPECT_TRUE(balanced) << "left behind:\n" << left_behind(before_, Balance::now());
}

}  // namespace limbo::testing
