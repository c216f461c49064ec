#include "tests/processes/peer_many.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <utility>

#include "allocator/device/device.h"
#include "allocator/error.h"
#include "tests/support/child_process.h"

namespace limbo::testing {
namespace {

std::string receive_at_once(std::istringstream& words) {
  struct One {
    std::vector<std::byte> message;
    ReceiveOptions options;
    Received got;
    std::string code = "none";
  };
  std::vector<One> all;
  int device = -1;
  for (std::string message; words >> device >> message;) {
    One& one = all.emplace_back();
    one.message = from_hex(message);
    if (device >= 0) one.options.device = device;
  }
  std::latch together(static_cast<std::ptrdiff_t>(all.size()));
  std::vector<std::thread> threads;
  for (One& one : all) {
    threads.emplace_back([&] {
      together.arrive_and_wait();
      try {
        one.got = process_sharing().receive(one.message, one.options);
      } catch (const Error& failure) {
        one.code = error_code_name(failure.code());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string codes;
  for (const One& one : all) codes += (codes.empty() ? "" : " ") + one.code;
  return codes;
}

std::string receive_by_threads(std::istringstream& words) {
  std::size_t count = 0;
  std::uint32_t value = 0;
  words >> count >> value;
  std::vector<std::vector<std::byte>> messages;
  for (std::string hex; words >> hex;) messages.push_back(from_hex(hex));
  Device& device = process_device();
  std::atomic<std::size_t> right{0};
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < count; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t index = thread; index < messages.size(); index += count) {
        const auto got = process_sharing().receive(messages[index], ReceiveOptions{});
        std::uint32_t first = 0;
        device.copy_to_host({got.block->device(), nullptr}, &first, got.block->data(), 4);
        if (first == value) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::to_string(right);
}

}  // namespace

std::optional<std::string> run_many(const std::string& command, std::istringstream& words,
                                    const std::function<std::string(const std::string&)>& run) {
  if (command == "receive_by_threads") return receive_by_threads(words);
  if (command == "receive_at_once") return receive_at_once(words);
  if (command != "repeat" && command != "receive_many") return std::nullopt;
  std::string answers;
  const auto add = [&](const std::string& line) {
    answers += (answers.empty() ? "" : " ") + run(line);
  };
  if (command == "receive_many") {
    std::string prefix;
    std::vector<std::string> messages;
    words >> prefix;
    for (std::string message; words >> message;) messages.push_back(message);
    std::string device = "-1";
    if (messages.size() >= 2 && messages[messages.size() - 2] == "on") {
      device = messages.back();
      messages.resize(messages.size() - 2);
    }
    for (std::size_t index = 0; index < messages.size(); ++index) {
      add("receive " + prefix + std::to_string(index) + " " + messages[index] + " " + device);
    }
    return answers;
  }
  int count = 0;
  std::string line;
  words >> count;
  std::getline(words >> std::ws, line);
  for (int index = 0; index < count; ++index) {
    std::string one = line;
    for (std::size_t at = one.find('%'); at != std::string::npos; at = one.find('%')) {
      one.replace(at, 1, std::to_string(index));
    }
    add(one);
  }
  return answers;
}

void AsideThread::drop(std::unique_ptr<ReceivedBlock> block) {
  join();
  thread_ = std::thread([held = std::move(block)]() mutable { held.reset(); });
}

void AsideThread::join() {
  if (thread_.joinable()) thread_.join();
}

void drop_by_many_threads(std::size_t count, std::vector<std::unique_ptr<ReceivedBlock>> blocks) {
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < count; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t index = thread; index < blocks.size(); index += count) blocks[index].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace limbo::testing
