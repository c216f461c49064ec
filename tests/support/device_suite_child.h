// The child of the device suite: does to its own device what its parent says, line by line.
//
// | line                         | answer                            |
// |------------------------------|-----------------------------------|
// | allocate BYTES VALUE         | the memory's handle, filled       |
// | open HANDLE                  | the address                       |
// | close ADDRESS                | done                              |
// | free (what it allocated)     | done                              |
// | read ADDRESS INDEX           | the 32-bit word there             |
// | count ADDRESS VALUE WORDS    | how many words differ             |
// | fill ADDRESS VALUE WORDS     | done, when it is                  |
// | write_for ADDRESS VALUE WORDS MS | enqueued                      |
// | words PATH                   | done: a SharedWords of the parent |
// | write_word INDEX VALUE       | enqueued                          |
// | wait_word INDEX VALUE        | enqueued                          |
// | synchronize                  | done                              |
//
// An error of the device is answered by "error CODE".
#pragma once

#include <memory>
#include <sstream>
#include <string>

#include "tests/support/device_suite.h"
#include "tests/support/shared_words.h"

namespace limbo::testing {

class DeviceChild {
 public:
  DeviceChild(ChildContext& context, const std::string& device_name)
      : context_(context),
        device_(device_named(device_name)),
        kernels_(kernels_of(device_name)),
        stream_{0, device_.create_stream(0)} {}

  // Until the parent closes its end.
  void serve() {
    while (const auto line = context_.try_receive()) {
      try {
        context_.send(answer(*line));
      } catch (const Error& error) {
        context_.send("error " + std::string(error_code_name(error.code())));
      }
    }
  }

 private:
  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "allocate") return allocate(words);
    if (verb == "open") return open(words);
    if (verb == "words" || verb == "write_word" || verb == "wait_word")
      return words_of(verb, words);
    if (verb == "read" || verb == "count") return data_of(verb, words);
    if (verb == "fill" || verb == "write_for") return change(verb, words);
    if (verb == "close") {
      device_.close_memory(0, address(words));
    } else if (verb == "free") {
      device_.free(0, own_);
    } else if (verb == "synchronize") {
      device_.synchronize_stream(stream_);
    } else {
      throw std::runtime_error("the child does not know \"" + line + "\"");
    }
    return "done";
  }

  static std::uint64_t number(std::istringstream& words) {
    std::uint64_t value = 0;
    if (!(words >> value)) throw std::runtime_error("a number is missing");
    return value;
  }

  static std::uint32_t* address(std::istringstream& words) {
    return reinterpret_cast<std::uint32_t*>(static_cast<std::uintptr_t>(number(words)));
  }

  std::string allocate(std::istringstream& words) {
    const std::uint64_t size_bytes = number(words);
    const auto value = static_cast<std::uint32_t>(number(words));
    own_ = device_.try_allocate(0, size_bytes);
    if (own_ == nullptr) return "null";
    device_.fill(stream_, own_, value, size_bytes / 4);
    device_.synchronize_stream(stream_);
    return to_hex(device_.export_memory(0, own_).bytes);
  }

  std::string open(std::istringstream& words) {
    std::string text;
    words >> text;
    MemoryHandle handle;
    const std::vector<std::byte> bytes = from_hex(text);
    std::copy(bytes.begin(), bytes.end(), handle.bytes.begin());
    return std::to_string(reinterpret_cast<std::uintptr_t>(device_.open_memory(0, handle)));
  }

  std::string data_of(const std::string& verb, std::istringstream& words) {
    const std::uint32_t* data = address(words);
    const std::uint64_t first = number(words);
    if (verb == "count") {
      return std::to_string(kernels_.count_different(
          stream_, data, static_cast<std::uint32_t>(first), number(words)));
    }
    std::uint32_t value = 0;
    device_.copy_to_host(stream_, &value, data + first, sizeof(value));
    return std::to_string(value);
  }

  std::string change(const std::string& verb, std::istringstream& words) {
    std::uint32_t* data = address(words);
    const auto value = static_cast<std::uint32_t>(number(words));
    const std::uint64_t count = number(words);
    if (verb == "write_for") {
      kernels_.write_for(stream_, data, value, count, std::chrono::milliseconds(number(words)));
      return "enqueued";
    }
    device_.fill(stream_, data, value, count);
    device_.synchronize_stream(stream_);
    return "done";
  }

  std::string words_of(const std::string& verb, std::istringstream& words) {
    if (verb == "words") {
      std::string path;
      words >> path;
      shared_ = std::make_unique<SharedWords>(device_, path);
      return "done";
    }
    std::uint64_t* word = shared_->word(number(words));
    const std::uint64_t value = number(words);
    if (verb == "write_word") {
      const WordWrite write{word, value};
      device_.write_words(stream_, {&write, 1});
    } else {
      device_.wait_word(stream_, word, value);
    }
    return "enqueued";
  }

  ChildContext& context_;
  Device& device_;
  TestKernels& kernels_;
  StreamRef stream_;
  void* own_ = nullptr;
  std::unique_ptr<SharedWords> shared_;
};

LIMBO_CHILD_ROLE(device_child) {
  DeviceChild(child, child.argument(0)).serve();
  return 0;
}

// The parent's side: one question, one answer.
inline std::string ask(ChildProcess& child, const std::string& line) {
  child.send(line);
  return child.receive();
}

inline std::string handle_text(const MemoryHandle& handle) {
  return to_hex(handle.bytes);
}

}  // namespace limbo::testing
