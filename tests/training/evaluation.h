// What trainer and reader both compute of one set of weights.
#pragma once

#include <bit>
#include <cstdint>

#include "tests/training/model.h"
#include "tests/training/place.h"

namespace limbo::training {

inline constexpr std::uint64_t kEvaluationSeed = 1'000'000;

// The loss of sequences that training never shows.
[[nodiscard]] inline float evaluate(Transformer& model) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const at::Tensor tokens = sequences(kEvaluationSeed, 8, 48).to(working_device());
  const float loss = model->loss(tokens).item<float>();
  model->train();
  return loss;
}

[[nodiscard]] inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

}  // namespace limbo::training
