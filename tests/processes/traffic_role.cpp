// A process that sends and receives many messages a command: for tests that count what grows.
//
// | command            | what it does                                              | answer            |
// |--------------------|-----------------------------------------------------------|-------------------|
// | send COUNT         | sends COUNT small blocks and frees them                   | the messages      |
// | receive MESSAGE... | opens, reads and releases each                            | how many were right |
// | keep MESSAGE...    | opens and reads each, and keeps them until `drop`         | how many were right |
// | replace VALUE      | sends a new block of this value in the place of the last  | the message       |
// | hold MESSAGE VALUE | opens it in the place of the last; reads it               | 1 or 0            |
// | drop               | gives up what `keep`, `replace` or `hold` has             |                   |
// | allocate_meanwhile | threads allocate and free until `enough`                  |                   |
// | enough             | ends them                                                 | collects within them |
// | uses               | what this process uses now                                | names and numbers |
#include <dirent.h>
#include <malloc.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "allocator/device/sim_device.h"
#include "allocator/error.h"
#include "ipc/sharing.h"
#include "tests/support/balance.h"
#include "tests/support/child_process.h"
#include "tests/support/sizes.h"

namespace limbo::testing {
namespace {

using Words = std::istringstream;

class Traffic {
 public:
  ~Traffic() { stop_threads(); }

  std::string run(const std::string& line) {
    Words words(line);
    std::string command;
    words >> command;
    return commands_.at(command)(words);
  }

 private:
  static Allocator& allocator() { return process_allocator(); }
  static Device& device() { return process_allocator().device(); }

  // A block whose words are all `value`.
  static void* filled(std::size_t words, std::uint32_t value) {
    void* data = allocator().allocate(words * 4, {});
    device().fill({}, data, value, words);
    return data;
  }
  static bool is_filled(const ReceivedBlock& block, std::uint32_t value) {
    std::vector<std::uint32_t> host(block.size_bytes() / 4);
    device().copy_to_host({block.device(), nullptr}, host.data(), block.data(), 4 * host.size());
    return std::all_of(host.begin(), host.end(), [&](auto word) { return word == value; });
  }

  std::string send(Words& in) {
    std::size_t count = 0;
    in >> count;
    std::string messages;
    for (std::size_t index = 0; index < count; ++index) {
      const auto words = static_cast<std::uint32_t>(1 + random_() % 128);
      void* data = filled(words, words);
      const Bytes message = process_sharing().share(data, words * std::size_t{4}, {}, {});
      allocator().free(data);
      messages += (index == 0 ? "" : " ") + to_hex(message);
    }
    return messages;
  }
  std::string receive(Words& in) {
    std::size_t right = 0;
    for (std::string message; in >> message;) {
      const Received got = process_sharing().receive(from_hex(message), {});
      if (is_filled(*got.block, static_cast<std::uint32_t>(got.block->size_bytes() / 4))) ++right;
    }
    return std::to_string(right);
  }

  std::string keep(Words& in) {
    std::size_t right = 0;
    for (std::string message; in >> message;) {
      kept_.push_back(process_sharing().receive(from_hex(message), {}).block);
      const ReceivedBlock& block = *kept_.back();
      if (is_filled(block, static_cast<std::uint32_t>(block.size_bytes() / 4))) ++right;
    }
    return std::to_string(right);
  }

  std::string replace(Words& in) {
    std::uint32_t value = 0;
    in >> value;
    void* data = filled(1000, value);
    if (current_ != nullptr) allocator().free(current_);
    current_ = data;
    return to_hex(process_sharing().share(data, 4000, {}, {}));
  }
  std::string hold(Words& in) {
    std::string message;
    std::uint32_t value = 0;
    in >> message >> value;
    received_ = process_sharing().receive(from_hex(message), {}).block;
    return is_filled(*received_, value) ? "1" : "0";
  }
  std::string drop(Words&) {
    received_.reset();
    kept_.clear();
    kept_.shrink_to_fit();
    if (current_ != nullptr) allocator().free(current_);
    current_ = nullptr;
    return {};
  }

  // Sizes that no cache serves for long, so that the slow path with its callbacks runs.
  std::string allocate_meanwhile(Words&) {
    static std::atomic<std::uint64_t>* const called = [] {
      auto* made = new std::atomic<std::uint64_t>;  // the callback is never removed
      process_allocator().add_free_memory_callback([made] {
        ++*made;
        return process_sharing().collect();
      });
      return made;
    }();
    called_ = called;
    stop_ = false;
    for (unsigned thread = 0; thread < 3; ++thread) {
      threads_.emplace_back([this, thread] {
        std::mt19937 random(thread);
        while (!stop_.load()) {
          void* small = allocator().allocate(1 + random() % kMiB, {});
          void* large = allocator().allocate(kMiB + random() % (8 * kMiB), {});
          allocator().free(small);
          allocator().free(large);
          if (random() % 64 == 0) allocator().empty_cache();
        }
      });
    }
    return {};
  }
  std::string enough(Words&) {
    stop_threads();
    return std::to_string(called_->load());
  }
  void stop_threads() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  static std::int64_t resident_kib() {
    std::ifstream status("/proc/self/status");
    std::int64_t sum = 0;
    for (std::string line; std::getline(status, line);) {
      Words words(line);
      std::string name;
      std::int64_t kib = 0;
      words >> name >> kib;
      if (name == "RssAnon:" || name == "RssShmem:") sum += kib;
    }
    return sum;
  }
  // Made and not destroyed; 0 where nobody counts.
  static std::int64_t events() {
    if (device().name() != "simulated") return 0;
    SimDevice& sim = as_sim(device());
    return static_cast<std::int64_t>(sim.calls(CallKind::kCreateEvent)) -
           static_cast<std::int64_t>(sim.calls(CallKind::kDestroyEvent));
  }
  std::string uses(Words&) {
    const Balance balance = Balance::now();
    const SharingStats sharing = process_sharing().stats();
    const DeviceStats memory = allocator().stats(0);
    const struct mallinfo2 heap = mallinfo2();
    std::ostringstream out;
    out << "descriptors " << balance.descriptors.size() << " mappings "
        << balance.memfd_mappings.size() << " dev_shm " << balance.shared_memory.size()
        << " heap_bytes " << heap.uordblks + heap.hblkhd << " resident_kib " << resident_kib()
        << " events " << events() << " limbo " << memory.limbo_bytes << " allocated "
        << memory.allocated_bytes[0].current << " active " << memory.active_bytes[0].current
        << " exports_open " << sharing.exports_open << " releases_pending "
        << sharing.releases_pending;
    return out.str();
  }

  const std::map<std::string, std::function<std::string(Words&)>> commands_ = {
      {"send", [this](Words& w) { return send(w); }},
      {"receive", [this](Words& w) { return receive(w); }},
      {"keep", [this](Words& w) { return keep(w); }},
      {"replace", [this](Words& w) { return replace(w); }},
      {"hold", [this](Words& w) { return hold(w); }},
      {"drop", [this](Words& w) { return drop(w); }},
      {"allocate_meanwhile", [this](Words& w) { return allocate_meanwhile(w); }},
      {"enough", [this](Words& w) { return enough(w); }},
      {"uses", [this](Words& w) { return uses(w); }},
  };
  std::mt19937 random_{1};
  void* current_ = nullptr;
  std::unique_ptr<ReceivedBlock> received_;
  std::vector<std::unique_ptr<ReceivedBlock>> kept_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t>* called_ = nullptr;
};

LIMBO_CHILD_ROLE(traffic) {
  Traffic traffic;
  while (const auto line = child.try_receive()) child.send(traffic.run(*line));
  return 0;
}

}  // namespace
}  // namespace limbo::testing
