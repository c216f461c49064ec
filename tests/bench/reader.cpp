#include "tests/bench/reader.h"

#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/process.h"
#include "tests/support/eventually.h"

namespace limbo::bench {
namespace {

// Long operations, thousands of them, on a simulated device that shares two cores.
constexpr std::chrono::milliseconds kPatience{120'000};

// The consumer's side: does what it is told, line by line.
class ReaderRole {
 public:
  explicit ReaderRole(testing::ChildContext& context) : context_(context) {}

  int serve() {
    context_.send("ready");
    while (const auto line = context_.try_receive()) {
      if (line->starts_with("message ")) {
        messages_.push_back(testing::from_hex(std::string_view(*line).substr(8)));
        continue;
      }
      std::istringstream words(*line);
      std::string verb;
      words >> verb;
      obey(verb, words);
    }
    held_.clear();
    end_sharing();
    return 0;
  }

 private:
  void obey(const std::string& verb, std::istringstream& words) {
    if (verb == "receive") {
      bool calls = false;
      int device = -1;
      words >> calls >> device;
      receive(calls, device);
    } else if (verb == "release") {
      std::size_t count = 0;
      std::int64_t behind_ms = 0;
      bool calls = false;
      words >> count >> behind_ms >> calls;
      release(count, std::chrono::milliseconds(behind_ms), calls);
    } else if (verb == "settle") {
      synchronize();
      if (!testing::eventually([] { return sharing().stats().releases_pending == 0; })) {
        throw std::runtime_error("what was released does not land");
      }
      context_.send("settled");
    } else if (verb == "write") {
      std::int64_t duration_ms = 0;
      words >> duration_ms;
      ReceivedBlock& block = *held_.back();
      kernels().write_for(stream_.ref(), block.data(), 7,
                          block.size_bytes() / sizeof(std::uint32_t),
                          std::chrono::milliseconds(duration_ms));
      context_.send("writing");
    } else {
      throw std::runtime_error("told to \"" + verb + "\"");
    }
  }

  void synchronize() {
    stream_.synchronize();
    if (other_gpus_) device().synchronize_stream(*other_gpus_);
  }

  // Times `operation` for each of `count`.
  template <typename Operation>
  void measure(std::size_t count, bool calls, std::chrono::milliseconds behind,
               Operation&& operation) {
    const std::uint64_t opens_before = sharing().stats().opens;
    ReaderTimes times;
    if (behind.count() > 0) stream_.keep_busy(behind);
    for (std::size_t done = 0; done < count; ++done) {
      if (behind.count() == 0 && done % kOperationsAtOnce == 0) synchronize();
      const MeasuredDevice::Listener listener(calls ? &times.calls : nullptr);
      timed(times.samples, operation);
    }
    times.still_busy = behind.count() > 0 && stream_.busy();
    times.opens = sharing().stats().opens - opens_before;
    report(times);
  }

  void receive(bool calls, int index) {
    ReceiveOptions options;
    if (index >= 0) {
      options.device = index;
      other_gpus_ = StreamRef{index, nullptr};
    } else {
      options.current_stream = [this](int) { return stream_.ref().handle; };
    }
    std::size_t next = 0;
    measure(messages_.size(), calls, {},
            [&] { held_.push_back(sharing().receive(messages_[next++], options).block); });
    messages_.clear();
  }

  void release(std::size_t count, std::chrono::milliseconds behind, bool calls) {
    measure(std::min(count, held_.size()), calls, behind, [this] { held_.pop_front(); });
  }

  void report(const ReaderTimes& times) {
    std::ostringstream line;
    line << times.still_busy << ' ' << times.opens;
    for (const CallTime& call : times.calls) line << ' ' << call.count << ' ' << call.ns;
    for (const std::int64_t ns : times.samples.all()) line << ' ' << ns;
    context_.send(line.str());
  }

  testing::ChildContext& context_;
  BusyStream stream_;
  std::optional<StreamRef> other_gpus_;  // the one that it received on last, where it has
  std::vector<Bytes> messages_;
  std::deque<std::unique_ptr<ReceivedBlock>> held_;  // the oldest first
};

LIMBO_CHILD_ROLE(bench_reader) {
  return ReaderRole(child).serve();
}

}  // namespace

Reader::Reader() : child_("bench_reader") {}

void Reader::send(std::string_view line) {
  if (!std::exchange(ready_, true)) child_.expect("ready", kPatience);
  child_.send(line);
}

void Reader::give(ByteSpan message) {
  send("message " + testing::to_hex(message));
}

ReaderTimes Reader::receive(bool calls, std::optional<int> device) {
  send(std::string("receive ") + (calls ? "1 " : "0 ") + std::to_string(device.value_or(-1)));
  return times();
}

ReaderTimes Reader::release(std::size_t count, std::chrono::milliseconds behind, bool calls) {
  send("release " + std::to_string(count) + " " + std::to_string(behind.count()) +
       (calls ? " 1" : " 0"));
  return times();
}

void Reader::settle() {
  send("settle");
  child_.expect("settled", kPatience);
}

void Reader::write(std::chrono::milliseconds duration) {
  send("write " + std::to_string(duration.count()));
  child_.expect("writing", kPatience);
}

void Reader::finish() {
  child_.close_input();
  child_.finish(kPatience);
}

ReaderTimes Reader::times() {
  std::istringstream line(child_.receive(kPatience));
  ReaderTimes times;
  line >> times.still_busy >> times.opens;
  for (CallTime& call : times.calls) line >> call.count >> call.ns;
  std::int64_t ns = 0;
  while (line >> ns) times.samples.add(ns);
  return times;
}

}  // namespace limbo::bench
