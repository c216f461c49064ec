// CUDA-typed tensors over the simulated GPU's memory, in a process without a driver.
//
// With LIMBO_DEVICE=simulated a device guard of ours stands in torch's registry for CUDA, so that
// such tensors can be made, viewed, pickled by Limbo's reducers, sent, and refused a resize.
// torch's own CUDA kernels (empty, fill_, copy_, repr) still want the driver: the operators sim_*
// are there instead. A process on the simulated device cannot use a real GPU through torch.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch {
class Library;
}

namespace limbo {

// Puts the guard into torch's registry, once. Call it only when simulated().
void install_simulated_guard();

// Defines the operators sim_* (operators.h) in the library "limbo". On another device they throw.
void register_simulated_operators(torch::Library& library);

}  // namespace limbo
