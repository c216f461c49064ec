#include "tests/training/model.h"

#include <cmath>
#include <random>
#include <string>

namespace limbo::training {

namespace nn = torch::nn;

LayerImpl::LayerImpl()
    : attention_norm_(nn::LayerNormOptions({kWidth})),
      queries_keys_values_(kWidth, 3 * kWidth),
      attended_(kWidth, kWidth),
      hidden_norm_(nn::LayerNormOptions({kWidth})),
      widened_(kWidth, 4 * kWidth),
      narrowed_(4 * kWidth, kWidth),
      dropout_(kDropout) {
  register_module("attention_norm", attention_norm_);
  register_module("queries_keys_values", queries_keys_values_);
  register_module("attended", attended_);
  register_module("hidden_norm", hidden_norm_);
  register_module("widened", widened_);
  register_module("narrowed", narrowed_);
  register_module("dropout", dropout_);
}

at::Tensor LayerImpl::forward(const at::Tensor& input) {
  const at::Tensor attended = input + dropout_(attend(attention_norm_(input)));
  const at::Tensor hidden = torch::gelu(widened_(hidden_norm_(attended)));
  return attended + dropout_(narrowed_(hidden));
}

// Written out: fused kernels may add in another order each time.
at::Tensor LayerImpl::attend(const at::Tensor& input) {
  const std::int64_t count = input.size(0);
  const std::int64_t length = input.size(1);
  const at::Tensor parts = queries_keys_values_(input)
                               .view({count, length, 3, kHeads, kWidth / kHeads})
                               .permute({2, 0, 3, 1, 4});
  const at::Tensor scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) /
                            std::sqrt(static_cast<double>(kWidth / kHeads));
  const at::Tensor later =
      torch::ones({length, length}, input.options().dtype(torch::kBool)).triu(1);
  const at::Tensor weights = torch::softmax(scores.masked_fill(later, -1e9), -1);
  const at::Tensor values = torch::matmul(weights, parts[2]);
  return attended_(values.transpose(1, 2).reshape({count, length, kWidth}));
}

TransformerImpl::TransformerImpl()
    : embedding_(kVocabulary, kWidth),
      places_(kLongest, kWidth),
      norm_(nn::LayerNormOptions({kWidth})),
      output_(kWidth, kVocabulary) {
  register_module("embedding", embedding_);
  register_module("places", places_);
  for (std::int64_t i = 0; i < kLayers; ++i) {
    layers_.emplace_back();
    register_module("layer" + std::to_string(i), layers_.back());
  }
  register_module("norm", norm_);
  register_module("output", output_);
}

at::Tensor TransformerImpl::loss(const at::Tensor& tokens) {
  const std::int64_t length = tokens.size(1) - 1;
  const at::Tensor known = tokens.narrow(1, 0, length);
  at::Tensor state = embedding_(known) + places_(torch::arange(length, tokens.options()));
  for (Layer& layer : layers_) state = layer(state);
  const at::Tensor guesses = output_(norm_(state)).reshape({-1, kVocabulary});
  return nn::functional::cross_entropy(guesses, tokens.narrow(1, 1, length).reshape({-1}));
}

at::Tensor sequences(std::uint64_t seed, std::int64_t count, std::int64_t length) {
  std::mt19937_64 random(seed);
  at::Tensor tokens = torch::empty({count, length}, torch::kInt64);
  auto rows = tokens.accessor<std::int64_t, 2>();
  for (std::int64_t row = 0; row < count; ++row) {
    std::int64_t token = static_cast<std::int64_t>(random() % std::uint64_t{kVocabulary});
    for (std::int64_t place = 0; place < length; ++place) {
      rows[row][place] = token;
      token = (5 * token + 7) % kVocabulary;
    }
  }
  return tokens;
}

}  // namespace limbo::training
