// Where the work is done, and where the weights lie that are handed over.
//
// On a GPU both are its memory. On the simulated device torch's kernels cannot run: the model is
// trained on the CPU, and the weights are copied to the simulated GPU to be lent, and back from it
// to be used. What is lent, and how, is the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace limbo::training {

// Whether this process is on the simulated device (LIMBO_DEVICE), else on a GPU.
[[nodiscard]] bool on_simulated_device();

// Before the first tensor: what makes two runs give the same bits.
void prepare_torch();

// Where the model is trained and evaluated.
[[nodiscard]] c10::Device working_device();

// A copy in memory that Limbo can lend.
[[nodiscard]] at::Tensor copy_to_lend(const at::Tensor& tensor);

// A received tensor as a model on `working_device()` takes it: on a GPU the very same memory.
[[nodiscard]] at::Tensor as_weights(const at::Tensor& received);

}  // namespace limbo::training
