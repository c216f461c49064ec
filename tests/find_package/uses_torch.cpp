// A program on limbo::torch: Limbo is the allocator, and a tensor is lent and opened again.
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdio>

#include "hooks/capi.h"
#include "hooks/install.h"
#include "hooks/tensors.h"
#include "hooks/version.h"

namespace {

// torch's own CUDA kernels need a GPU; this makes a tensor over the simulated one's memory.
at::Tensor simulated_tensor() {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("limbo::sim_empty", "")
      .typed<at::Tensor(at::IntArrayRef, at::ScalarType, std::int64_t)>()
      .call({8}, at::kFloat, 0);
}

}  // namespace

int main() {
  limbo::install();
  if (!limbo::installed() || limbo_torch_usable() != 0) return 1;
  const at::Tensor tensor = simulated_tensor();
  const at::Tensor received = limbo::receive_tensor(limbo::share_tensor(tensor));
  std::printf("torch %s: %lld elements\n", limbo::torch_running_under().c_str(),
              static_cast<long long>(received.numel()));
  return received.data_ptr() == tensor.data_ptr() && received.numel() == 8 ? 0 : 1;
}
