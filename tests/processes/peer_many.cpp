#include "tests/processes/peer_many.h"

#include <utility>

namespace limbo::testing {

std::optional<std::string> run_many(const std::string& command, std::istringstream& words,
                                    const std::function<std::string(const std::string&)>& run) {
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
