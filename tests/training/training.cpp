// A training program under Limbo: a small transformer whose weights are handed to another process
// after each step. That process is killed twice, once while it reads them and once while they are
// on their way, and started again; what it held, and what it was promised, comes back.
//
// Prints a line `step N loss L evaluation E` for each step, with the bits of both numbers: equal
// lines under `--allocator limbo` and `--allocator native` mean equal training. (Memory of torch's
// own allocator cannot be lent: with `native` nothing is handed over.)
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/allocator.h"
#include "allocator/device/device.h"
#include "hooks/install.h"
#include "hooks/tensors.h"
#include "ipc/sharing.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"
#include "tests/support/text_table.h"
#include "tests/training/evaluation.h"
#include "tests/training/reader.h"

namespace limbo::training {
namespace {

using testing::eventually;
using testing::in_mib;
using Clock = std::chrono::steady_clock;

constexpr char kHelp[] =
    R"(Trains a small transformer and hands its weights to a second process after each step.

  limbo_training [--allocator limbo|native] [--steps N]

  --allocator A  whose CUDA memory torch uses: Limbo's (the default), or torch's own, under which
                 the same training goes on without handing anything over
  --steps N      training steps, 6 to 100000 (default 20)
  --help         this text

With LIMBO_DEVICE=simulated in the environment the model is trained on the CPU and its weights are
lent through a simulated GPU. The exit status is 0 when the model has learned, every evaluation in
the second process gave the trainer's own bits, and all memory came back; else 1.
)";

struct Options {
  bool limbo = true;
  int steps = 20;
};

// Nothing after --help, which it prints. Throws std::invalid_argument.
std::unique_ptr<Options> parse_options(int argc, char** argv) {
  auto options = std::make_unique<Options>();
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help") {
      std::fputs(kHelp, stdout);
      return nullptr;
    }
    if (name != "--allocator" && name != "--steps") {
      throw std::invalid_argument("There is no option \"" + name +
                                  "\"; there are --allocator, --steps and --help.");
    }
    if (++i == argc) throw std::invalid_argument(name + " lacks its value.");
    const std::string value = argv[i];
    if (name == "--steps") {
      char* end = nullptr;
      const long number = std::strtol(value.c_str(), &end, 10);
      if (*end != '\0' || number < 6 || number > 100'000) {
        throw std::invalid_argument("--steps takes a number from 6 to 100000, not \"" + value +
                                    "\".");
      }
      options->steps = static_cast<int>(number);
    } else if (value != "limbo" && value != "native") {
      throw std::invalid_argument("--allocator takes limbo or native, not \"" + value + "\".");
    } else {
      options->limbo = value == "limbo";
    }
  }
  return options;
}

// The weights' way to the second process, whichever of its incarnations lives.
class HandOver {
 public:
  void start_reader() {
    reader_ = std::make_unique<testing::ChildProcess>(kReaderRole);
    reader_->expect("ready");
  }

  // Copies of the weights, forgotten here as soon as they are lent.
  void send(int step, const std::vector<at::Tensor>& weights, float evaluation) {
    messages_.clear();
    for (const at::Tensor& weight : weights) {
      const at::Tensor copy = copy_to_lend(weight);
      messages_.push_back(share_tensor(copy));
    }
    lent_ += messages_.size();
    reader_->send("weights " + std::to_string(step) + " " + std::to_string(messages_.size()));
    for (const Bytes& message : messages_) reader_->send_bytes(message);
    expected_ = "evaluated " + std::to_string(step) + " " + std::to_string(bits_of(evaluation));
  }

  // What the second process has made of the last weights.
  void check_answer() {
    if (expected_.empty()) return;
    const std::string answer = reader_->receive();
    if (answer != expected_) {
      ++wrong_;
      std::printf("WRONG: \"%s\" where \"%s\" was expected\n", answer.c_str(), expected_.c_str());
    }
    expected_.clear();
  }

  void kill_while_it_reads() {
    check_answer();
    reader_->send("read on");
    reader_->expect("reading");
    kill("while it reads the weights of two steps");
  }

  // It may have opened any number of the messages. Nobody will open the others: they are withdrawn,
  // which takes nothing from a process that holds what it opened.
  void kill_on_the_way() {
    kill("while the weights are on their way");
    expected_.clear();
  }

  void end() {
    check_answer();
    reader_->close_input();
    reader_->finish();
    if (!eventually(all_back)) ++lost_;
  }

  [[nodiscard]] std::size_t lent() const { return lent_; }
  [[nodiscard]] int wrong() const { return wrong_; }
  [[nodiscard]] int lost() const { return lost_; }

 private:
  // Nothing is lent, promised or held, and no memory waits for anybody.
  static bool all_back() {
    (void)process_sharing().collect();
    const SharingStats sharing = process_sharing().stats();
    const DeviceStats memory = process_allocator().stats(0);
    return sharing.exports_open == 0 && sharing.in_flight == 0 && sharing.held_claims == 0 &&
           memory.limbo_blocks == 0 &&
           memory.active_bytes[0].current == memory.allocated_bytes[0].current;
  }

  void kill(const char* when) {
    const pid_t pid = reader_->pid();
    const auto start = Clock::now();
    reader_->kill();
    const std::int64_t in_limbo = process_allocator().stats(0).limbo_bytes;
    for (const Bytes& message : messages_) withdraw_message(message);
    const bool back = eventually(all_back);
    if (!back) ++lost_;
    std::printf("reader (process %d) killed by SIGKILL %s; %s MiB in limbo %s after %.0f ms\n",
                static_cast<int>(pid), when, in_mib(static_cast<std::uint64_t>(in_limbo)).c_str(),
                back ? "are back" : "are NOT back",
                std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    start_reader();
  }

  std::unique_ptr<testing::ChildProcess> reader_;
  std::vector<Bytes> messages_;  // the last step's
  std::string expected_;         // the answer to them; empty when there will be none
  std::size_t lent_ = 0;
  int wrong_ = 0;
  int lost_ = 0;
};

class Training {
 public:
  explicit Training(const Options& options) : options_(options) {
    model_->to(working_device());
    optimizer_ = std::make_unique<torch::optim::AdamW>(model_->parameters(),
                                                       torch::optim::AdamWOptions(3e-3));
    if (options_.limbo) hand_over_.start_reader();
  }

  // The exit status.
  int run() {
    float first = 0;
    float last = 0;
    for (int step = 1; step <= options_.steps; ++step) {
      const float loss = train(step);
      last = evaluate(model_);
      if (step == 1) first = last;
      std::printf("step %d loss %.6f %08x evaluation %.6f %08x\n", step, static_cast<double>(loss),
                  bits_of(loss), static_cast<double>(last), bits_of(last));
      if (options_.limbo) hand_over(step, last);
      std::fflush(stdout);
    }
    if (options_.limbo) hand_over_.end();
    return report(last < first);
  }

 private:
  float train(int step) {
    const std::int64_t length = 24 * (1 + step % 3);  // so that blocks are split and used again
    const at::Tensor tokens =
        sequences(static_cast<std::uint64_t>(step), 16, length).to(working_device());
    optimizer_->zero_grad();
    const at::Tensor loss = model_->loss(tokens);
    loss.backward();
    optimizer_->step();
    return loss.item<float>();
  }

  void hand_over(int step, float evaluation) {
    hand_over_.check_answer();  // of the step before: the reader worked while this one was trained
    hand_over_.send(step, model_->parameters(), evaluation);
    if (step == options_.steps / 3) hand_over_.kill_while_it_reads();
    if (step == options_.steps * 2 / 3) hand_over_.kill_on_the_way();
  }

  int report(bool learned) {
    if (!learned) std::printf("The model has not learned: its evaluation has not fallen.\n");
    const bool good = learned && hand_over_.wrong() == 0 && hand_over_.lost() == 0;
    std::printf("training: allocator=%s device=%s steps=%d lent=%zu kills=%d wrong=%d lost=%d\n",
                options_.limbo ? "limbo" : "native", on_simulated_device() ? "simulated" : "cuda",
                options_.steps, hand_over_.lent(), options_.limbo ? 2 : 0, hand_over_.wrong(),
                hand_over_.lost());
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
  }

  const Options& options_;
  Transformer model_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  HandOver hand_over_;
};

int run_training(int argc, char** argv) {
  std::unique_ptr<Options> options;
  try {
    options = parse_options(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  if (!options) return EXIT_SUCCESS;
  setenv("LIMBO_DEVICE", "cuda", /*overwrite=*/0);
  if (std::string why; !on_simulated_device() && !cuda_available(&why)) {
    std::fprintf(stderr, "There is no CUDA device: %s.\n", why.c_str());
    return EXIT_FAILURE;
  }
  const testing::Sandbox sandbox;  // other programs of this user are left alone
  prepare_torch();
  if (options->limbo) install();
  return Training(*options).run();
}

}  // namespace
}  // namespace limbo::training

int main(int argc, char** argv) {
  try {
    if (const auto status = limbo::testing::run_child_role(argc, argv)) return *status;
    return limbo::training::run_training(argc, argv);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "The training failed: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
