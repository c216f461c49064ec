#include "tests/tools/demo/consumer.h"

#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "allocator/device/device.h"
#include "ipc/sharing.h"
#include "tests/tools/demo/block_pattern.h"

namespace limbo::demo {
namespace {

constexpr std::size_t kKept = 6;  // blocks that a consumer holds before it gives the oldest back

class Consumer {
 public:
  explicit Consumer(testing::ChildContext& context)
      : context_(context), device_(process_device()), stream_{0, device_.create_stream(0)} {}

  int run() {
    context_.send("ready");
    while (const auto line = context_.try_receive()) {
      if (line->starts_with("take ")) {
        take(testing::from_hex(std::string_view(*line).substr(5)));
      } else if (*line == "hold") {
        read_for_ever();
      } else if (*line == "give back") {
        while (!held_.empty()) give_back_oldest();
        context_.send("empty");
      }
    }
    return 0;
  }

 private:
  struct Held {
    std::unique_ptr<ReceivedBlock> block;
    BlockNote note;
  };

  void take(const Bytes& descriptor) {
    ReceiveOptions options;
    options.current_stream = [this](int) { return stream_.handle; };
    Received received = process_sharing().receive(descriptor, options);
    held_.push_back({std::move(received.block), note_from(received.extra)});
    report("received", held_.back());
    if (held_.size() > kKept) give_back_oldest();
  }

  void give_back_oldest() {
    Held oldest = std::move(held_.front());
    held_.pop_front();
    // Read once more: whoever had been given the memory meanwhile would have written there.
    const std::string line = described("released", oldest);
    oldest.block->release();
    // So that it has landed when the producer counts; release itself never waits.
    device_.synchronize_stream(stream_);
    context_.send(line);
  }

  // Or until the producer has ended without killing it.
  void read_for_ever() {
    const pid_t producer = getppid();
    context_.send("holding");
    while (getppid() == producer) {
      for (const Held& held : held_) (void)intact(held);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  bool intact(const Held& held) {
    return holds_pattern(device_, stream_, held.block->data(), held.block->size_bytes(),
                         held.note.value);
  }

  std::string described(const char* verb, const Held& held) {
    return std::string(verb) + " " + std::to_string(held.note.number) + " " +
           std::to_string(held.block->size_bytes()) + (intact(held) ? " ok" : " bad");
  }

  void report(const char* verb, const Held& held) { context_.send(described(verb, held)); }

  testing::ChildContext& context_;
  Device& device_;
  StreamRef stream_;
  std::deque<Held> held_;  // the oldest first
};

}  // namespace

int run_consumer(testing::ChildContext& context) {
  return Consumer(context).run();
}

}  // namespace limbo::demo
