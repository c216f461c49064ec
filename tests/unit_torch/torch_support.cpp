#include "tests/unit_torch/torch_support.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

namespace limbo::testing {
namespace {

// By the dispatcher, as Python calls them.
template <typename Signature>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

bool holds_in_fork_child(const std::function<bool()>& in_child) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    bool holds = false;
    try {
      holds = in_child();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in the fork child: %s\n", error.what());
    }
    ::_exit(holds ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

at::Tensor sim_empty(at::IntArrayRef sizes, c10::ScalarType dtype) {
  static const auto call =
      find_operator<at::Tensor(at::IntArrayRef, c10::ScalarType, std::int64_t)>("limbo::sim_empty");
  return call.call(sizes, dtype, 0);
}

at::Tensor sim_arange(std::int64_t count) {
  at::Tensor tensor = sim_empty({count});
  sim_write(tensor, at::arange(count, at::TensorOptions().dtype(at::kFloat)));
  return tensor;
}

at::Tensor sim_read(const at::Tensor& tensor) {
  static const auto call = find_operator<at::Tensor(const at::Tensor&)>("limbo::sim_read");
  return call.call(tensor);
}

void sim_write(const at::Tensor& tensor, const at::Tensor& values) {
  static const auto call =
      find_operator<void(const at::Tensor&, const at::Tensor&)>("limbo::sim_write");
  call.call(tensor, values);
}

}  // namespace limbo::testing
