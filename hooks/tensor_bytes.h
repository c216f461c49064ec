// What a message says about its tensor, as bytes: the `extra` of a descriptor, under its checksum.
// Never pickle. Little endian, every field written one by one:
//
//   magic (4) | version (2) | form (1) | kind (1) | dtype (1) | flags (1) | dimensions (1) | 0 (1)
//   | storage offset in elements (8) | size (8), stride (8) of each dimension
//
// dtype is torch's ScalarType number, which torch never reassigns.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "ipc/sharing.h"

namespace limbo {

enum class TensorForm : std::uint8_t {
  kStorage = 0,  // the bytes of a storage; nothing else is told
  kTensor = 1,
};

struct TensorLayout {
  TensorForm form = TensorForm::kStorage;
  std::uint8_t kind = 0;  // the sender's number, for instance "a Parameter"
  c10::ScalarType dtype = c10::ScalarType::Byte;
  bool requires_grad = false;
  bool conjugate = false;           // a view that conjugates (complex types)
  bool negative = false;            // a view that negates
  std::int64_t storage_offset = 0;  // in elements, as sizes and strides
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  friend bool operator==(const TensorLayout&, const TensorLayout&) = default;
};

inline constexpr std::size_t kMostDimensions = 255;

// Throws Error(kNotLendable) for more dimensions than that.
[[nodiscard]] Bytes encode_layout(const TensorLayout& layout);

// Checks everything that can be checked without the storage. Throws Error(kBadDescriptor).
[[nodiscard]] TensorLayout decode_layout(ByteSpan bytes);

// The bytes of storage that the tensor reaches, from the storage's start; 0 when it has no element.
// Throws Error(kBadDescriptor) when that is more than 2^63 - 1.
[[nodiscard]] std::uint64_t reach_bytes(const TensorLayout& layout);

// ---- messages without memory --------------------------------------------------------------------
// A tensor whose storage is empty needs no export: its message is a header and the layout.
//
//   magic (8) | version (2) | 0 (2) | length of the layout (4) | layout | checksum (4, CRC-32C)

[[nodiscard]] Bytes encode_empty_message(const TensorLayout& layout);
[[nodiscard]] bool is_empty_message(ByteSpan message) noexcept;
// Throws Error(kBadDescriptor).
[[nodiscard]] TensorLayout decode_empty_message(ByteSpan message);

}  // namespace limbo
