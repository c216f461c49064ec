#include "tests/training/reader.h"

#include <unistd.h>

#include <deque>
#include <sstream>
#include <string>
#include <vector>

#include "hooks/tensors.h"
#include "tests/support/child_process.h"
#include "tests/training/evaluation.h"

namespace limbo::training {
namespace {

// A process that receives needs no Limbo allocator: this one keeps torch's.
class Reader {
 public:
  explicit Reader(testing::ChildContext& context) : context_(context) {
    for (at::Tensor& parameter : model_->parameters()) parameter.requires_grad_(false);
  }

  int run() {
    context_.send("ready");
    while (const auto line = context_.try_receive()) {
      std::istringstream words(*line);
      std::string verb;
      words >> verb;
      if (verb == "weights") take(words);
      if (verb == "read") read_until_killed();
    }
    return 0;
  }

 private:
  void take(std::istringstream& words) {
    int step = 0;
    std::size_t count = 0;
    words >> step >> count;
    std::vector<at::Tensor> received;
    for (std::size_t i = 0; i < count; ++i) {
      received.push_back(receive_tensor(context_.receive_bytes()));
    }
    put_in(received);
    held_.push_back(std::move(received));
    if (held_.size() > 2) held_.pop_front();  // given back behind the work that read them
    context_.send("evaluated " + std::to_string(step) + " " +
                  std::to_string(bits_of(evaluate(model_))));
  }

  void put_in(const std::vector<at::Tensor>& received) {
    std::vector<at::Tensor> parameters = model_->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].set_data(as_weights(received.at(i)));
    }
  }

  // Or until the trainer has ended without killing it.
  void read_until_killed() {
    const pid_t trainer = getppid();
    context_.send("reading");
    while (getppid() == trainer) {
      for (const std::vector<at::Tensor>& received : held_) {
        put_in(received);
        (void)evaluate(model_);
      }
    }
  }

  testing::ChildContext& context_;
  Transformer model_;
  std::deque<std::vector<at::Tensor>> held_;
};

LIMBO_CHILD_ROLE(training_reader) {
  prepare_torch();
  return Reader(child).run();
}

}  // namespace
}  // namespace limbo::training
