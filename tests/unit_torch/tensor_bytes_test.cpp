#include "hooks/tensor_bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>

#include "allocator/error.h"

namespace limbo {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TensorLayout sample() {
  TensorLayout layout;
  layout.form = TensorForm::kTensor;
  layout.kind = 7;
  layout.dtype = c10::ScalarType::BFloat16;
  layout.requires_grad = true;
  layout.storage_offset = 5;
  layout.sizes = {3, 1, 4};
  layout.strides = {8, 0, 2};
  return layout;
}

ErrorCode code_of_decoding(const Bytes& bytes) {
  try {
    (void)decode_layout(bytes);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

TEST(TensorBytes, LayoutComesBackAsItWas) {
  EXPECT_EQ(decode_layout(encode_layout(sample())), sample());
  TensorLayout conjugated = sample();
  conjugated.dtype = c10::ScalarType::ComplexFloat;
  conjugated.conjugate = conjugated.negative = true;
  EXPECT_EQ(decode_layout(encode_layout(conjugated)), conjugated);
  EXPECT_EQ(decode_layout(encode_layout(TensorLayout{})), TensorLayout{});
  TensorLayout scalar;
  scalar.form = TensorForm::kTensor;
  EXPECT_EQ(decode_layout(encode_layout(scalar)), scalar);
}

TEST(TensorBytes, EveryOtherLengthIsRefused) {
  const Bytes whole = encode_layout(sample());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_EQ(code_of_decoding(cut), ErrorCode::kBadDescriptor) << length;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_EQ(code_of_decoding(longer), ErrorCode::kBadDescriptor);
}

TEST(TensorBytes, NoByteOfTheHeaderCrashesTheReader) {
  const Bytes whole = encode_layout(sample());
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      Bytes altered = whole;
      altered[at] = static_cast<std::byte>(value);
      try {
        const TensorLayout layout = decode_layout(altered);
        EXPECT_LE(reach_bytes(layout), static_cast<std::uint64_t>(kMost));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kBadDescriptor) << at << " = " << value;
      }
    }
  }
}

TEST(TensorBytes, WhatCannotBeIsRefused) {
  const auto refused = [](auto change) {
    TensorLayout layout = sample();
    change(layout);
    return code_of_decoding(encode_layout(layout)) == ErrorCode::kBadDescriptor;
  };
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.sizes[0] = -1; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.strides[0] = -1; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.storage_offset = -1; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.dtype = c10::ScalarType::Long; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.dtype = c10::ScalarType::QInt8; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.dtype = c10::ScalarType::Undefined; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.conjugate = true; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.sizes = layout.strides = {kMost, 2, 2}; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) { layout.storage_offset = kMost; }));
  EXPECT_TRUE(refused([](TensorLayout& layout) {
    layout.sizes[0] = 2;
    layout.strides[0] = kMost;
  }));
}

TEST(TensorBytes, ReachIsTheLastElementsEnd) {
  TensorLayout layout = sample();  // 5 + 2 * 8 + 0 + 3 * 2 = 27 elements lie before the last one
  EXPECT_EQ(reach_bytes(layout), 28U * 2U);
  layout.sizes[1] = 0;
  EXPECT_EQ(reach_bytes(layout), 0U);
  layout.form = TensorForm::kStorage;
  EXPECT_EQ(reach_bytes(layout), 0U);
}

// Where the last element ends, in numbers that are wide enough; nothing where memory ends before.
std::optional<std::uint64_t> exact_reach_bytes(const TensorLayout& layout) {
  __extension__ using Wide = unsigned __int128;
  Wide elements = static_cast<Wide>(layout.storage_offset) + 1;
  for (std::size_t i = 0; i < layout.sizes.size(); ++i) {
    if (layout.sizes[i] == 0) return 0;
    elements += static_cast<Wide>(layout.sizes[i] - 1) * static_cast<Wide>(layout.strides[i]);
  }
  const Wide bytes = elements * c10::elementSize(layout.dtype);
  if (bytes > static_cast<Wide>(kMost)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

// A reach that is wrapped around would let a tensor of a small block reach all of memory.
TEST(TensorBytes, ReachIsRightForWhateverIsAccepted) {
  std::mt19937_64 random(20261129);
  const auto number = [&]() -> std::int64_t {
    switch (random() % 4) {
      case 0:
        return static_cast<std::int64_t>(random() % 4);
      case 1:
        return kMost - static_cast<std::int64_t>(random() % 4);
      case 2:
        return (std::int64_t{1} << (random() % 63)) - static_cast<std::int64_t>(random() % 2);
      default:
        return static_cast<std::int64_t>(random() >> (1 + random() % 63));
    }
  };
  int accepted = 0;
  for (int round = 0; round < 100'000; ++round) {
    TensorLayout layout = sample();
    layout.dtype = random() % 2 == 0 ? c10::ScalarType::Half : c10::ScalarType::Float8_e4m3fn;
    layout.storage_offset = number();
    layout.sizes.clear();
    layout.strides.clear();
    for (std::uint64_t left = random() % 4; left > 0; --left) {
      layout.sizes.push_back(number());
      layout.strides.push_back(number());
    }
    const auto exact = exact_reach_bytes(layout);
    const Bytes bytes = encode_layout(layout);
    if (!exact) {
      ASSERT_EQ(code_of_decoding(bytes), ErrorCode::kBadDescriptor) << "round " << round;
      continue;
    }
    ASSERT_EQ(reach_bytes(decode_layout(bytes)), *exact) << "round " << round;
    ++accepted;
  }
  EXPECT_GT(accepted, 1000);
}

// Any bytes, and right ones with some of them changed: an error or a layout, which comes back.
TEST(TensorBytes, RandomBytesAreRefusedOrComeBackAsTheyWere) {
  std::mt19937_64 random(20261130);
  const Bytes good = encode_layout(sample());
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes = good;
    if (round % 4 == 0) bytes.resize(random() % 80);
    for (std::uint64_t changes = random() % 12; changes > 0 && !bytes.empty(); --changes) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    try {
      ASSERT_EQ(encode_layout(decode_layout(bytes)), bytes);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kBadDescriptor);
    }
    try {
      (void)decode_empty_message(bytes);
      FAIL() << "no message begins like that";
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kBadDescriptor);
    }
  }
}

TEST(TensorBytes, TooManyDimensionsCannotBeSent) {
  TensorLayout layout;
  layout.form = TensorForm::kTensor;
  layout.sizes.assign(kMostDimensions + 1, 1);
  layout.strides.assign(kMostDimensions + 1, 1);
  try {
    (void)encode_layout(layout);
    FAIL() << "256 dimensions were encoded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotLendable);
  }
}

TEST(EmptyMessage, ComesBackAndNoByteMayChange) {
  TensorLayout layout = sample();
  layout.sizes[2] = 0;
  const Bytes whole = encode_empty_message(layout);
  EXPECT_TRUE(is_empty_message(whole));
  EXPECT_EQ(decode_empty_message(whole), layout);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    Bytes altered = whole;
    altered[at] ^= std::byte{0x10};
    EXPECT_THROW((void)decode_empty_message(altered), Error) << at;
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(at));
    EXPECT_THROW((void)decode_empty_message(cut), Error) << at;
  }
}

TEST(EmptyMessage, MemoryOutOfNothingIsRefused) {
  EXPECT_THROW((void)decode_empty_message(encode_empty_message(sample())), Error);
}

}  // namespace
}  // namespace limbo
