#include "tests/bench/sends.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/json.h"
#include "tests/bench/lent.h"
#include "tests/bench/process.h"
#include "tests/bench/report.h"
#include "tests/bench/usage.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/text_table.h"

namespace limbo::bench {
namespace {

constexpr std::size_t kSentBytes = 4096;
constexpr std::uint64_t kBatch = 256;
constexpr std::uint64_t kBatchesAhead = 4;  // that the sender may be ahead
constexpr std::size_t kHeld = 64;           // messages that the receiver holds at a time
// What is done with some of the messages only: the data is checked, a second stream uses it.
constexpr std::uint64_t kCheckEvery = 512;
constexpr std::uint64_t kSecondStreamEvery = 16;
constexpr std::size_t kLeakedBytes = std::size_t{2} << 20;
constexpr int kLeakedEvents = 200;
constexpr std::uint64_t kMostWarmUp = 100'000;  // every claim slot of the receiver has been used
constexpr std::uint64_t kMoments = 10;          // at which both are looked at, beside the first
constexpr std::chrono::milliseconds kAnswerPatience{120'000};

std::uint32_t value_of(std::uint64_t number) {
  return static_cast<std::uint32_t>(number) | 0x4000'0000U;
}

// ---- the receiver -------------------------------------------------------------------------------

class Receiver {
 public:
  explicit Receiver(testing::ChildContext& context)
      : context_(context), leak_(context.argument(0)), second_{0, device().create_stream(0)} {}

  int serve() {
    context_.send("ready");
    while (const auto line = context_.try_receive()) {
      if (*line == "usage") {
        settle();
        std::ostringstream answer;
        for (const std::int64_t value : usage_now()) answer << value << ' ';
        context_.send(answer.str());
      } else {
        take_batch(*line);
        context_.send("taken " + std::to_string(checked_) + " " + std::to_string(wrong_));
      }
    }
    settle();
    end_sharing();
    return 0;
  }

 private:
  void take_batch(const std::string& line) {
    std::istringstream messages(line);
    for (std::string message; messages >> message;) take(testing::from_hex(message));
    // So that no more than a batch is on its way back.
    stream_.synchronize();
  }

  void take(const Bytes& message) {
    ReceiveOptions options;
    options.current_stream = [this](int) { return stream_.ref().handle; };
    Received received = sharing().receive(message, options);
    std::uint64_t number = 0;
    if (received.extra.size() == sizeof(number)) {
      std::memcpy(&number, received.extra.data(), sizeof(number));
    }
    if (number != next_++) ++wrong_;
    if (number % kSecondStreamEvery == 0) received.block->record_stream(second_);
    if (number % kCheckEvery == 0) {
      check(*received.block, number);
      leak();
    }
    held_.push_back(std::move(received.block));
    if (held_.size() > kHeld) held_.pop_front();
  }

  void check(const ReceivedBlock& block, std::uint64_t number) {
    std::array<std::uint32_t, kSentBytes / sizeof(std::uint32_t)> words{};
    device().copy_to_host(stream_.ref(), words.data(), block.data(), sizeof(words));
    ++checked_;
    for (const std::uint32_t word : words) {
      if (word != value_of(number)) {
        ++wrong_;
        return;
      }
    }
  }

  // More than the tolerance in a few thousand messages.
  void leak() {
    if (leak_ == "descriptors") leaked_fd_ = ::dup(STDERR_FILENO);
    if (leak_ == "memory") leaked_.emplace_back(kLeakedBytes, std::byte{1});
    for (int i = 0; leak_ == "events" && i < kLeakedEvents; ++i) (void)device().create_event(0);
  }

  void settle() {
    held_.clear();
    stream_.synchronize();
    device().synchronize_stream(second_);
    if (!testing::eventually([] { return sharing().stats().releases_pending == 0; })) {
      throw std::runtime_error("what was released does not land");
    }
  }

  testing::ChildContext& context_;
  const std::string leak_;
  int leaked_fd_ = -1;  // the last of them
  BusyStream stream_;
  const StreamRef second_;
  std::deque<std::unique_ptr<ReceivedBlock>> held_;
  std::vector<Bytes> leaked_;
  std::uint64_t next_ = 0;
  std::uint64_t checked_ = 0;
  std::uint64_t wrong_ = 0;
};

LIMBO_CHILD_ROLE(bench_receiver) {
  return Receiver(child).serve();
}

// ---- the sender ---------------------------------------------------------------------------------

struct Moment {
  std::uint64_t sends = 0;
  double seconds = 0;
  Usage sender{};
  Usage receiver{};
};

class Sender {
 public:
  explicit Sender(const std::string& leak) : child_("bench_receiver", {leak}) {
    child_.expect("ready", kAnswerPatience);
  }

  void send_until(std::uint64_t count) {
    const auto start = Clock::now();
    while (sent_ < count) {
      send_batch(std::min(kBatch, count - sent_));
      while (batches_unread_ > kBatchesAhead) read_answer();
    }
    while (batches_unread_ > 0) read_answer();
    sending_ns_ += ns_since(start);
  }

  // With nothing on its way.
  [[nodiscard]] Moment look() {
    child_.send("usage");
    std::istringstream values(child_.receive(kAnswerPatience));
    Moment moment;
    for (std::int64_t& value : moment.receiver) values >> value;
    wait_until_all_is_back();
    moment.sender = usage_now();
    moment.sends = sent_;
    moment.seconds = static_cast<double>(sending_ns_) / 1e9;
    return moment;
  }

  void finish() {
    child_.close_input();
    child_.finish(kAnswerPatience);
  }
  [[nodiscard]] std::uint64_t checked() const noexcept { return checked_; }
  [[nodiscard]] std::uint64_t wrong() const noexcept { return wrong_; }

 private:
  void send_batch(std::uint64_t count) {
    ShareOptions options;
    options.current_stream = stream_.ref();
    std::string line;
    for (std::uint64_t done = 0; done < count; ++done, ++sent_) {
      void* block = allocator().allocate(kSentBytes, stream_.ref());
      if (sent_ % kCheckEvery == 0) {
        device().fill(stream_.ref(), block, value_of(sent_), kSentBytes / sizeof(std::uint32_t));
      }
      const Bytes message =
          sharing().share(block, kSentBytes, options, std::as_bytes(std::span(&sent_, 1)));
      allocator().free(block);
      line += testing::to_hex(message) + " ";
    }
    child_.send(line);
    ++batches_unread_;
  }

  void read_answer() {
    std::istringstream answer(child_.receive(kAnswerPatience));
    std::string verb;
    answer >> verb >> checked_ >> wrong_;
    if (verb != "taken") throw std::runtime_error("the receiver says \"" + verb + "\"");
    --batches_unread_;
  }

  testing::ChildProcess child_;
  BusyStream stream_;
  std::uint64_t sent_ = 0;
  std::uint64_t batches_unread_ = 0;
  std::uint64_t checked_ = 0;
  std::uint64_t wrong_ = 0;
  std::int64_t sending_ns_ = 0;
};

// ---- what came of it ----------------------------------------------------------------------------

// One side's numbers at every moment.
std::string table_of(const std::vector<Moment>& moments, Usage Moment::*side) {
  std::vector<std::string> headings{">sends", ">seconds"};
  for (const UseKind& use : kUses) headings.push_back(std::string(">") + use.name);
  testing::TextTable table(headings);
  for (const Moment& moment : moments) {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f", moment.seconds);
    std::vector<std::string> cells{std::to_string(moment.sends), seconds};
    for (const std::int64_t value : moment.*side) cells.push_back(std::to_string(value));
    table.add_row(std::move(cells));
  }
  return table.text("  ");
}

std::string json_of(const std::vector<Moment>& moments, bool flat, std::uint64_t wrong) {
  const auto write = [](JsonWriter& json, const char* name, const Usage& usage) {
    json.key(name);
    json.begin_object();
    for (std::size_t kind = 0; kind < kUses.size(); ++kind) {
      json.field(kUses[kind].name, usage[kind]);
    }
    json.end_object();
  };
  JsonWriter json;
  json.begin_object();
  json.field("flat", flat);
  json.field("wrong", wrong);
  json.key("moments");
  json.begin_array();
  for (const Moment& moment : moments) {
    json.begin_object();
    json.field("sends", moment.sends);
    json.field("milliseconds", static_cast<std::int64_t>(moment.seconds * 1'000));
    write(json, "sender", moment.sender);
    write(json, "receiver", moment.receiver);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.text();
}

}  // namespace

int run_sends(std::uint64_t count, const std::string& json_path, const std::string& leak) {
  std::printf("%s\n", text_of(this_machine()).c_str());
  std::fflush(stdout);
  Sender sender(leak);
  const std::uint64_t warm_up = std::min(count / 4, kMostWarmUp);
  sender.send_until(warm_up);
  std::vector<Moment> moments{sender.look()};
  for (std::uint64_t step = 1; step <= kMoments; ++step) {
    sender.send_until(warm_up + (count - warm_up) * step / kMoments);
    moments.push_back(sender.look());
  }
  sender.finish();

  const Moment& first = moments.front();
  const Moment& last = moments.back();
  const std::string sender_grown = grown(first.sender, last.sender);
  const std::string receiver_grown = grown(first.receiver, last.receiver);
  const bool flat = sender_grown.empty() && receiver_grown.empty();
  std::printf("The sender:\n\n%s\nThe receiver:\n\n%s\n",
              table_of(moments, &Moment::sender).c_str(),
              table_of(moments, &Moment::receiver).c_str());
  if (!sender_grown.empty()) std::printf("The sender has grown: %s.\n", sender_grown.c_str());
  if (!receiver_grown.empty()) std::printf("The receiver has grown: %s.\n", receiver_grown.c_str());
  std::printf("sends=%llu seconds=%.1f checked=%llu wrong=%llu flat=%s\n",
              static_cast<unsigned long long>(count), last.seconds,
              static_cast<unsigned long long>(sender.checked()),
              static_cast<unsigned long long>(sender.wrong()), flat ? "yes" : "no");
  if (!json_path.empty()) write_file(json_path, json_of(moments, flat, sender.wrong()));
  return flat && sender.wrong() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace limbo::bench
