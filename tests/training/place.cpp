#include "tests/training/place.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/utils.h>

#include <cstdlib>

#include "hooks/process.h"

namespace limbo::training {
namespace {

template <typename Signature>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

bool on_simulated_device() {
  return simulated();
}

void prepare_torch() {
  // cuBLAS adds in one order only with a workspace of this kind; read when CUDA starts.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  at::globalContext().setDeterministicAlgorithms(/*enabled=*/true, /*warn_only=*/false);
  at::set_num_threads(1);
  torch::manual_seed(0);
}

c10::Device working_device() {
  return on_simulated_device() ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, 0);
}

at::Tensor copy_to_lend(const at::Tensor& tensor) {
  if (!on_simulated_device()) return tensor.detach().clone();
  static const auto make =
      find_operator<at::Tensor(at::IntArrayRef, c10::ScalarType, std::int64_t)>("limbo::sim_empty");
  static const auto write =
      find_operator<void(const at::Tensor&, const at::Tensor&)>("limbo::sim_write");
  at::Tensor made = make.call(tensor.sizes(), tensor.scalar_type(), /*device=*/0);
  write.call(made, tensor.detach());
  return made;
}

at::Tensor as_weights(const at::Tensor& received) {
  if (!on_simulated_device()) return received;
  static const auto read = find_operator<at::Tensor(const at::Tensor&)>("limbo::sim_read");
  return read.call(received);
}

}  // namespace limbo::training
