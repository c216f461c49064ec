#include "ipc/descriptor.h"

#include <gtest/gtest.h>

#include <random>

#include "allocator/error.h"
#include "ipc/byte_fields.h"
#include "ipc/channel.h"
#include "ipc/checksum.h"

namespace limbo {
namespace {

Descriptor sample() {
  Descriptor descriptor;
  descriptor.producer = {0x0123'4567'89ab'cdefULL, 0xfedc'ba98'7654'3210ULL};
  descriptor.boot = boot_id();
  descriptor.ticket.export_index = 77;
  descriptor.ticket.generation = protocol::kMaxGeneration;
  descriptor.ticket.piece_index = 5;
  descriptor.ticket.piece_generation = 9;
  descriptor.ticket.piece_size_bytes = 2 << 20;
  descriptor.ticket.offset_bytes = 4096;
  descriptor.ticket.size_bytes = 512;
  descriptor.ticket.points[0] = {0, 3, 41};
  descriptor.ticket.points[1] = {0, 4, 42};
  for (std::size_t byte = 0; byte < 16; ++byte) {
    descriptor.ticket.device_uuid.bytes[byte] = static_cast<std::uint8_t>(byte);
  }
  descriptor.directory = "/tmp/limbo-1000";
  descriptor.socket_name = channel_socket_name(descriptor.producer);
  descriptor.extra = {std::byte{1}, std::byte{0}, std::byte{255}};
  return descriptor;
}

// The code of the error that decoding ends with; nothing when it ends well.
std::optional<ErrorCode> outcome(ByteSpan bytes) {
  try {
    (void)decode_descriptor(bytes);
    return std::nullopt;
  } catch (const Error& failure) {
    return failure.code();
  }
}

// A descriptor whose bytes are another's and whose checksum is right.
Bytes sealed(Bytes bytes) {
  bytes.resize(bytes.size() - 4);
  FieldWriter out;
  out.raw(bytes);
  out.patch_u32(8, static_cast<std::uint32_t>(bytes.size() + 4));
  out.number(crc32c(out.view()));
  return out.take();
}

TEST(Checksum, MatchesThePublishedCheckValue) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe306'9283U);
  EXPECT_EQ(crc32c({}), 0U);
}

// Bit by bit, as the polynomial says.
std::uint32_t crc32c_by_bits(ByteSpan bytes) {
  std::uint32_t value = 0xffff'ffffU;
  for (const std::byte byte : bytes) {
    value ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f6'3b78U : 0U);
  }
  return ~value;
}

TEST(Checksum, IsTheSameForEveryLengthAndAddress) {
  std::mt19937 random(4);
  Bytes bytes(80);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t from = 0; from < 8; ++from) {
    for (std::size_t count = 0; from + count <= bytes.size(); ++count) {
      const ByteSpan part = ByteSpan(bytes).subspan(from, count);
      ASSERT_EQ(crc32c(part), crc32c_by_bits(part)) << count << " bytes from " << from;
      ASSERT_EQ(detail::crc32c_by_tables(part), crc32c(part)) << count << " bytes from " << from;
    }
  }
}

TEST(Descriptor, ComesBackAsItWas) {
  const Descriptor before = sample();
  const Descriptor after = decode_descriptor(encode_descriptor(before));
  EXPECT_EQ(after.producer, before.producer);
  EXPECT_EQ(after.boot, before.boot);
  EXPECT_EQ(after.ticket.device_uuid, before.ticket.device_uuid);
  EXPECT_EQ(after.ticket.export_index, before.ticket.export_index);
  EXPECT_EQ(after.ticket.generation, before.ticket.generation);
  EXPECT_EQ(after.ticket.piece_index, before.ticket.piece_index);
  EXPECT_EQ(after.ticket.piece_generation, before.ticket.piece_generation);
  EXPECT_EQ(after.ticket.piece_size_bytes, before.ticket.piece_size_bytes);
  EXPECT_EQ(after.ticket.piece_count, 1U);
  EXPECT_EQ(after.ticket.offset_bytes, before.ticket.offset_bytes);
  EXPECT_EQ(after.ticket.size_bytes, before.ticket.size_bytes);
  EXPECT_EQ(after.ticket.points[0], before.ticket.points[0]);
  EXPECT_EQ(after.ticket.points[1], before.ticket.points[1]);
  EXPECT_EQ(after.directory, before.directory);
  EXPECT_EQ(after.socket_name, before.socket_name);
  EXPECT_EQ(after.extra, before.extra);
}

TEST(Descriptor, TakesTheLargestExtraAndNoMore) {
  Descriptor descriptor = sample();
  descriptor.extra.assign(kMaxExtraBytes, std::byte{7});
  EXPECT_EQ(decode_descriptor(encode_descriptor(descriptor)).extra, descriptor.extra);
  descriptor.extra.push_back(std::byte{7});
  try {
    (void)encode_descriptor(descriptor);
    FAIL();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kBadArgument);
    EXPECT_NE(std::string(failure.what()).find("65537"), std::string::npos);
  }
}

TEST(Descriptor, EveryTruncationAndExtensionIsRefused) {
  Bytes bytes = encode_descriptor(sample());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_EQ(outcome(ByteSpan(bytes).first(length)), ErrorCode::kBadDescriptor) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(outcome(bytes), ErrorCode::kBadDescriptor);
}

TEST(Descriptor, EveryFlippedBitIsRefused) {
  const Bytes good = encode_descriptor(sample());
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_EQ(outcome(bytes), ErrorCode::kBadDescriptor) << "bit " << bit;
  }
}

TEST(Descriptor, RandomBytesAreRefused) {
  std::mt19937_64 random(20261129);
  const Bytes good = encode_descriptor(sample());
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes(random() % 400);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    ASSERT_EQ(outcome(bytes), ErrorCode::kBadDescriptor);
    // With a good frame around them the fields are what must be refused, or be in range.
    const std::size_t head = std::min<std::size_t>(bytes.size(), 12);
    std::copy_n(good.begin(), head, bytes.begin());
    if (bytes.size() < 16) continue;
    const auto code = outcome(sealed(bytes));
    ASSERT_TRUE(!code || code == ErrorCode::kBadDescriptor);
  }
}

TEST(Descriptor, AnotherVersionIsNamedWithOurs) {
  Bytes bytes = encode_descriptor(sample());
  bytes[4] = std::byte{9};
  try {
    (void)decode_descriptor(bytes);
    FAIL();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::kBadDescriptor);
    const std::string text = failure.what();
    EXPECT_NE(text.find("version 9"), std::string::npos) << text;
    EXPECT_NE(text.find("version 1"), std::string::npos) << text;
  }
}

TEST(Descriptor, FieldsOutOfRangeAreRefusedUnderAGoodChecksum) {
  const auto refused = [](auto change) {
    Descriptor descriptor = sample();
    change(descriptor);
    return outcome(encode_descriptor(descriptor)) == ErrorCode::kBadDescriptor;
  };
  EXPECT_TRUE(
      refused([](Descriptor& d) { d.ticket.export_index = protocol::kMaxExportIndex + 1; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.ticket.generation = protocol::kMaxGeneration + 1; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.ticket.piece_count = 2; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.ticket.piece_count = 0; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.ticket.size_bytes = 0; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.ticket.size_bytes = d.ticket.piece_size_bytes + 1; }));
  // offset + size overflows to something small
  EXPECT_TRUE(refused([](Descriptor& d) { d.ticket.offset_bytes = ~std::uint64_t{0} - 255; }));
  EXPECT_TRUE(
      refused([](Descriptor& d) { d.ticket.offset_bytes = d.ticket.piece_size_bytes - 511; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.directory = "relative"; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.directory.clear(); }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.directory += std::string(1, '\0') + "x"; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.socket_name = "../other.sock"; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.socket_name = ".hidden"; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.socket_name.clear(); }));
  // Another's socket: connecting there would make a lease that nobody wants.
  EXPECT_TRUE(refused([](Descriptor& d) { d.producer.low ^= 1; }));
  EXPECT_TRUE(refused([](Descriptor& d) { d.socket_name[0] = 'f'; }));
  EXPECT_FALSE(refused([](Descriptor&) {}));
}

TEST(Incarnation, IsRandomAndPrintsAs32Digits) {
  const Incarnation one = random_incarnation();
  EXPECT_NE(one, random_incarnation());
  EXPECT_EQ(to_string(one).size(), 32U);
  EXPECT_EQ(to_string(Incarnation{0x1, 0xf}), "0000000000000001000000000000000f");
}

}  // namespace
}  // namespace limbo
