// The small transformer that is trained, and the sequences that it learns to continue.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <vector>

namespace limbo::training {

inline constexpr std::int64_t kVocabulary = 64;
inline constexpr std::int64_t kWidth = 128;
inline constexpr std::int64_t kHeads = 4;
inline constexpr std::int64_t kLayers = 2;
inline constexpr std::int64_t kLongest = 96;  // tokens of a sequence
inline constexpr double kDropout = 0.1;

// Attention to what came before, then two linear layers; each behind a norm, each added to its input.
class LayerImpl final : public torch::nn::Module {
 public:
  LayerImpl();
  [[nodiscard]] at::Tensor forward(const at::Tensor& input);

 private:
  [[nodiscard]] at::Tensor attend(const at::Tensor& input);

  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear queries_keys_values_;
  torch::nn::Linear attended_;
  torch::nn::LayerNorm hidden_norm_;
  torch::nn::Linear widened_;
  torch::nn::Linear narrowed_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(Layer);

class TransformerImpl final : public torch::nn::Module {
 public:
  TransformerImpl();

  // The mean loss of telling each token of `tokens` (sequences by length, int64) from those before.
  [[nodiscard]] at::Tensor loss(const at::Tensor& tokens);

 private:
  torch::nn::Embedding embedding_;
  torch::nn::Embedding places_;
  std::vector<Layer> layers_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear output_;
};
TORCH_MODULE(Transformer);

// Sequences in which each token follows from the one before; equal for equal seeds. On the CPU.
[[nodiscard]] at::Tensor sequences(std::uint64_t seed, std::int64_t count, std::int64_t length);

}  // namespace limbo::training
