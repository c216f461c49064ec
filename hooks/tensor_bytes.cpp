#include "hooks/tensor_bytes.h"

#include <algorithm>
#include <limits>
#include <string>

#include "allocator/error.h"
#include "ipc/byte_fields.h"
#include "ipc/checksum.h"

namespace limbo {
namespace {

constexpr std::uint32_t kLayoutMagic = 0x31544d4c;  // "LMT1"
constexpr std::uint16_t kLayoutVersion = 1;
constexpr std::size_t kLayoutHeaderBytes = 4 + 2 + 1 + 1 + 1 + 1 + 1 + 1 + 8;
constexpr std::size_t kBytesPerDimension = 16;

constexpr std::uint8_t kRequiresGrad = 1;
constexpr std::uint8_t kConjugate = 2;
constexpr std::uint8_t kNegative = 4;
constexpr std::uint8_t kAllFlags = kRequiresGrad | kConjugate | kNegative;

constexpr std::uint64_t kEmptyMagic = 0x3159'5450'4d45'4d4cULL;  // "LMEMPTY1"
constexpr std::uint16_t kEmptyVersion = 1;
constexpr std::size_t kEmptyHeaderBytes = 8 + 2 + 2 + 4;
constexpr std::size_t kChecksumBytes = 4;

[[noreturn]] void throw_bad(const std::string& happened) {
  throw Error(ErrorCode::kBadDescriptor, happened,
              "Use the bytes exactly as share returned them, with the same Limbo on both sides.");
}

bool known_dtype(c10::ScalarType dtype) {
  if (dtype < c10::ScalarType::Byte || dtype >= c10::ScalarType::Undefined) return false;
  return !c10::isQIntType(dtype);
}

void check_tensor(const TensorLayout& layout) {
  if (!known_dtype(layout.dtype)) {
    throw_bad("The message names an unknown dtype, number " +
              std::to_string(static_cast<int>(layout.dtype)) + ".");
  }
  const bool floating = c10::isFloatingType(layout.dtype) || c10::isComplexType(layout.dtype);
  if (layout.requires_grad && !floating) {
    throw_bad("The message says that a tensor of integers requires grad.");
  }
  if (layout.conjugate && !c10::isComplexType(layout.dtype)) {
    throw_bad("The message says that a tensor of real numbers is conjugated.");
  }
  const auto negative = [](std::int64_t value) { return value < 0; };
  if (layout.storage_offset < 0 || std::ranges::any_of(layout.sizes, negative) ||
      std::ranges::any_of(layout.strides, negative)) {
    throw_bad("The message has a negative size, stride or offset.");
  }
  (void)reach_bytes(layout);
}

}  // namespace

Bytes encode_layout(const TensorLayout& layout) {
  if (layout.sizes.size() > kMostDimensions) {
    throw Error(ErrorCode::kNotLendable,
                "The tensor has " + std::to_string(layout.sizes.size()) + " dimensions.",
                "At most 255 can be sent; reshape it.");
  }
  FieldWriter out;
  out.number(kLayoutMagic);
  out.number(kLayoutVersion);
  out.number(static_cast<std::uint8_t>(layout.form));
  out.number(layout.kind);
  out.number(static_cast<std::uint8_t>(layout.dtype));
  out.number(static_cast<std::uint8_t>((layout.requires_grad ? kRequiresGrad : 0) |
                                       (layout.conjugate ? kConjugate : 0) |
                                       (layout.negative ? kNegative : 0)));
  out.number(static_cast<std::uint8_t>(layout.sizes.size()));
  out.number(std::uint8_t{0});
  out.number(static_cast<std::uint64_t>(layout.storage_offset));
  for (std::size_t i = 0; i < layout.sizes.size(); ++i) {
    out.number(static_cast<std::uint64_t>(layout.sizes[i]));
    out.number(static_cast<std::uint64_t>(layout.strides[i]));
  }
  return out.take();
}

TensorLayout decode_layout(ByteSpan bytes) {
  if (bytes.size() < kLayoutHeaderBytes) {
    throw_bad("The message has no tensor in it: " + std::to_string(bytes.size()) +
              " bytes where at least " + std::to_string(kLayoutHeaderBytes) + " were expected.");
  }
  FieldReader reader(bytes);
  if (reader.number<std::uint32_t>() != kLayoutMagic) throw_bad("The message has no tensor in it.");
  const auto version = reader.number<std::uint16_t>();
  if (version != kLayoutVersion) {
    throw_bad("The message describes its tensor in version " + std::to_string(version) +
              ", and this Limbo reads version " + std::to_string(kLayoutVersion) + ".");
  }
  TensorLayout layout;
  const auto form = reader.number<std::uint8_t>();
  layout.kind = reader.number<std::uint8_t>();
  layout.dtype = static_cast<c10::ScalarType>(reader.number<std::uint8_t>());
  const auto flags = reader.number<std::uint8_t>();
  const std::size_t dimensions = reader.number<std::uint8_t>();
  const auto reserved = reader.number<std::uint8_t>();
  if (form > static_cast<std::uint8_t>(TensorForm::kTensor) || (flags & ~kAllFlags) != 0 ||
      reserved != 0) {
    throw_bad("The message describes its tensor in a way that this Limbo does not know.");
  }
  if (bytes.size() != kLayoutHeaderBytes + kBytesPerDimension * dimensions) {
    throw_bad("The message's tensor has " + std::to_string(dimensions) + " dimensions, and " +
              std::to_string(bytes.size()) + " bytes to describe them.");
  }
  layout.form = static_cast<TensorForm>(form);
  layout.requires_grad = (flags & kRequiresGrad) != 0;
  layout.conjugate = (flags & kConjugate) != 0;
  layout.negative = (flags & kNegative) != 0;
  layout.storage_offset = static_cast<std::int64_t>(reader.number<std::uint64_t>());
  for (std::size_t i = 0; i < dimensions; ++i) {
    layout.sizes.push_back(static_cast<std::int64_t>(reader.number<std::uint64_t>()));
    layout.strides.push_back(static_cast<std::int64_t>(reader.number<std::uint64_t>()));
  }
  check_tensor(layout);
  return layout;
}

std::uint64_t reach_bytes(const TensorLayout& layout) {
  if (layout.form == TensorForm::kStorage) return 0;
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (std::ranges::find(layout.sizes, 0) != layout.sizes.end()) return 0;
  if (layout.storage_offset >= std::numeric_limits<std::int64_t>::max()) {
    throw_bad("The message's tensor reaches further than memory does.");
  }
  auto elements = static_cast<std::uint64_t>(layout.storage_offset) + 1;  // at most kMost
  for (std::size_t i = 0; i < layout.sizes.size(); ++i) {
    const auto steps = static_cast<std::uint64_t>(layout.sizes[i] - 1);
    const auto stride = static_cast<std::uint64_t>(layout.strides[i]);
    if (stride != 0 && steps > (kMost - elements) / stride) {
      throw_bad("The message's tensor reaches further than memory does.");
    }
    elements += steps * stride;
  }
  const std::uint64_t element_bytes = c10::elementSize(layout.dtype);
  if (elements > kMost / element_bytes) {
    throw_bad("The message's tensor reaches further than memory does.");
  }
  return elements * element_bytes;
}

Bytes encode_empty_message(const TensorLayout& layout) {
  const Bytes inner = encode_layout(layout);
  FieldWriter out;
  out.number(kEmptyMagic);
  out.number(kEmptyVersion);
  out.number(std::uint16_t{0});
  out.number(static_cast<std::uint32_t>(inner.size()));
  out.raw(inner);
  out.number(crc32c(out.view()));
  return out.take();
}

bool is_empty_message(ByteSpan message) noexcept {
  return FieldReader(message).number<std::uint64_t>() == kEmptyMagic;
}

TensorLayout decode_empty_message(ByteSpan message) {
  if (!is_empty_message(message) || message.size() < kEmptyHeaderBytes + kChecksumBytes) {
    throw_bad("The message is cut short: it has " + std::to_string(message.size()) + " bytes.");
  }
  const ByteSpan body = message.first(message.size() - kChecksumBytes);
  if (FieldReader(message.last(kChecksumBytes)).number<std::uint32_t>() != crc32c(body)) {
    throw_bad("The message was altered on its way: its checksum is wrong.");
  }
  FieldReader reader(body);
  (void)reader.number<std::uint64_t>();
  const auto version = reader.number<std::uint16_t>();
  const auto reserved = reader.number<std::uint16_t>();
  const std::size_t length = reader.number<std::uint32_t>();
  if (version != kEmptyVersion || reserved != 0) {
    throw_bad("The message has version " + std::to_string(version) + ", and this Limbo reads " +
              std::to_string(kEmptyVersion) + ".");
  }
  if (body.size() != kEmptyHeaderBytes + length) {
    throw_bad("The message's length does not agree with what it says.");
  }
  TensorLayout layout = decode_layout(body.subspan(kEmptyHeaderBytes));
  if (reach_bytes(layout) != 0) {
    throw_bad("The message has no memory, and its tensor needs some.");
  }
  return layout;
}

}  // namespace limbo
