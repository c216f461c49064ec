#include "ipc/messages.h"

#include <gtest/gtest.h>

#include <random>

#include "ipc/life_line.h"
#include "ipc/protocol/upstream.h"

namespace limbo {
namespace {

std::string frame_error(const MessageBytes& bytes, std::size_t descriptors) {
  MessageHeader header;
  return check_frame(bytes, descriptors, header);
}

TEST(Messages, ComeBackAsTheyWere) {
  Hello hello;
  hello.incarnation = {1, 2};
  hello.life_line_flags = life_line::kLate | life_line::kPerhapsMps;
  Hello hello_back;
  EXPECT_EQ(frame_error(encode(hello), 1), "");
  ASSERT_TRUE(decode(encode(hello), hello_back));
  EXPECT_EQ(hello_back.incarnation, hello.incarnation);
  EXPECT_EQ(hello_back.life_line_flags, hello.life_line_flags);
  EXPECT_EQ(hello_back.ledger_version, kLedgerVersion);

  Welcome welcome;
  welcome.lease_number = 17;
  welcome.incarnation = {3, 4};
  Welcome welcome_back;
  EXPECT_EQ(frame_error(encode(welcome), 5), "");
  ASSERT_TRUE(decode(encode(welcome), welcome_back));
  EXPECT_EQ(welcome_back.lease_number, 17U);
  EXPECT_EQ(welcome_back.capacities, welcome.capacities);

  Refused refused_back;
  EXPECT_EQ(frame_error(encode(Refused{ErrorCode::kLedgerFull, "no room"}), 0), "");
  ASSERT_TRUE(decode(encode(Refused{ErrorCode::kLedgerFull, "no room"}), refused_back));
  EXPECT_EQ(refused_back.code, ErrorCode::kLedgerFull);
  EXPECT_EQ(refused_back.text, "no room");

  Decline decline_back;
  EXPECT_EQ(frame_error(encode(Decline{5, 6}), 0), "");
  ASSERT_TRUE(decode(encode(Decline{5, 6}), decline_back));
  EXPECT_EQ(decline_back.export_index, 5U);
  EXPECT_EQ(decline_back.generation, 6U);

  EXPECT_EQ(frame_error(encode_row_half_full(), 0), "");
}

TEST(Messages, WhatIsAskedAndAnsweredComesBackAsItWas) {
  Forward forward;
  forward.request = 1;
  forward.slot = 2;
  forward.export_index = 3;
  forward.generation = 4;
  forward.offset_bytes = 5;
  forward.size_bytes = 6;
  forward.consumers = 7;
  forward.time_limit_ms = 8;
  forward.timeline[0] = 9;
  forward.timeline[1] = 10;
  forward.number[0] = 11;
  forward.number[1] = 12;
  forward.also_behind = {{13, 14, 15}, {16, 17, 18}};
  forward.also_lost = true;
  Forward forward_back;
  EXPECT_EQ(frame_error(encode(forward), 0), "");
  ASSERT_TRUE(decode(encode(forward), forward_back));
  EXPECT_EQ(encode(forward_back), encode(forward));
  EXPECT_EQ(forward_back.time_limit_ms, 8U);
  EXPECT_EQ(forward_back.timeline[1], 10U);
  EXPECT_EQ(forward_back.number[0], 11U);
  EXPECT_EQ(forward_back.also_behind, forward.also_behind);
  EXPECT_TRUE(forward_back.also_lost);
  forward.also_behind.resize(protocol::kMostUpstream);
  EXPECT_EQ(frame_error(encode(forward), 0), "");
  EXPECT_TRUE(decode(encode(forward), forward_back));
  forward.also_behind.resize(protocol::kMostUpstream + 1);
  EXPECT_FALSE(decode(encode(forward), forward_back));

  Forwarded forwarded_back;
  EXPECT_EQ(frame_error(encode(Forwarded{1, 2, 3}), 0), "");
  ASSERT_TRUE(decode(encode(Forwarded{1, 2, 3}), forwarded_back));
  EXPECT_EQ(forwarded_back.request, 1U);
  EXPECT_EQ(forwarded_back.export_index, 2U);
  EXPECT_EQ(forwarded_back.generation, 3U);

  AskTimelines ask_back;
  EXPECT_EQ(frame_error(encode(AskTimelines{1, 2}), 0), "");
  ASSERT_TRUE(decode(encode(AskTimelines{1, 2}), ask_back));
  EXPECT_EQ(ask_back.lease_number, 2U);

  GivenTimelines given_back;
  EXPECT_EQ(frame_error(encode(GivenTimelines{1, life_line::kLate}), 3), "");
  ASSERT_TRUE(decode(encode(GivenTimelines{1, life_line::kLate}), given_back));
  EXPECT_EQ(given_back.life_line_flags, life_line::kLate);

  AskedInVain vain_back;
  EXPECT_EQ(frame_error(encode(AskedInVain{1, ErrorCode::kGone, "over"}), 0), "");
  ASSERT_TRUE(decode(encode(AskedInVain{1, ErrorCode::kGone, "over"}), vain_back));
  EXPECT_EQ(vain_back.code, ErrorCode::kGone);
  EXPECT_EQ(vain_back.text, "over");
  EXPECT_LE(encode(AskedInVain{1, ErrorCode::kGone, std::string(100'000, 'x')}).size(),
            kMaxMessageBytes);

  TakeBack back_back;
  EXPECT_EQ(frame_error(encode(TakeBack{5, 6}), 0), "");
  ASSERT_TRUE(decode(encode(TakeBack{5, 6}), back_back));
  EXPECT_EQ(back_back.export_index, 5U);
  EXPECT_EQ(back_back.generation, 6U);

  Heard heard_back;
  EXPECT_EQ(frame_error(encode(Heard{5, 6}), 0), "");
  ASSERT_TRUE(decode(encode(Heard{5, 6}), heard_back));
  EXPECT_EQ(heard_back.export_index, 5U);
  EXPECT_EQ(heard_back.generation, 6U);

  ProvesLess less_back;
  EXPECT_EQ(frame_error(encode(ProvesLess{life_line::kLate}), 0), "");
  ASSERT_TRUE(decode(encode(ProvesLess{life_line::kLate}), less_back));
  EXPECT_EQ(less_back.life_line_flags, life_line::kLate);
  EXPECT_FALSE(decode(encode(ProvesLess{0x80}), less_back));
}

TEST(Messages, ALongTextIsCutToWhatAMessageHolds) {
  const MessageBytes bytes = encode(Refused{ErrorCode::kInternal, std::string(100'000, 'x')});
  EXPECT_LE(bytes.size(), kMaxMessageBytes);
  Refused back;
  EXPECT_TRUE(decode(bytes, back));
}

TEST(Messages, UnknownTypesAndVersionsAreNamed) {
  MessageBytes bytes = encode_row_half_full();
  bytes[2] = std::byte{7};
  const std::string version = frame_error(bytes, 0);
  EXPECT_NE(version.find("version 7"), std::string::npos) << version;
  EXPECT_NE(version.find("version " + std::to_string(kMessageVersion)), std::string::npos)
      << version;
  bytes = encode_row_half_full();
  bytes[0] = std::byte{99};
  const std::string type = frame_error(bytes, 0);
  EXPECT_NE(type.find("type 99"), std::string::npos) << type;
}

TEST(Messages, LaterTypesAreNotAvailableYet) {
  MessageBytes bytes = encode_row_half_full();
  bytes[0] = static_cast<std::byte>(MessageType::kMemory);
  EXPECT_EQ(frame_error(bytes, 0), "Message \"memory\" is not available yet");
}

TEST(Messages, WrongLengthsAndDescriptorsAreRefused) {
  const MessageBytes good = encode(Decline{5, 6});
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_NE(frame_error({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)}, 0),
              "");
  }
  MessageBytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_NE(frame_error(longer, 0), "");
  longer[4] = static_cast<std::byte>(longer.size());  // even when the length says so
  EXPECT_NE(frame_error(longer, 0), "");
  EXPECT_NE(frame_error(good, 1), "");
  Hello hello;
  hello.incarnation = {1, 2};
  EXPECT_NE(frame_error(encode(hello), 0), "");
}

TEST(Messages, FieldsOutOfRangeAreNotDecoded) {
  Hello hello;  // incarnation 0
  EXPECT_FALSE(decode(encode(hello), hello));
  hello.incarnation = {1, 1};
  hello.life_line_flags = 0x80;
  EXPECT_FALSE(decode(encode(hello), hello));
  Welcome welcome;
  welcome.capacities.claims = 100;  // no whole group
  EXPECT_FALSE(decode(encode(welcome), welcome));
  Decline decline{protocol::kMaxExportIndex + 1, 0};
  EXPECT_FALSE(decode(encode(decline), decline));
}

TEST(Messages, RandomBytesDoNoHarm) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20'000; ++round) {
    MessageBytes bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (bytes.size() >= 8 && round % 2 == 0) {  // a good header
      bytes[0] = static_cast<std::byte>(random() % 22);
      bytes[1] = std::byte{0};
      bytes[2] = static_cast<std::byte>(kMessageVersion);
      bytes[3] = std::byte{0};
      bytes[4] = static_cast<std::byte>(bytes.size());
      bytes[5] = bytes[6] = bytes[7] = std::byte{0};
    }
    MessageHeader header;
    if (!check_frame(bytes, random() % 5, header).empty()) continue;
    Hello hello;
    Welcome welcome;
    Refused refused;
    Decline decline;
    Forward forward;
    Forwarded forwarded;
    AskTimelines ask;
    GivenTimelines given;
    AskedInVain vain;
    TakeBack back;
    Heard heard;
    (void)(decode(bytes, hello) || decode(bytes, welcome) || decode(bytes, refused) ||
           decode(bytes, decline) || decode(bytes, forward) || decode(bytes, forwarded) ||
           decode(bytes, ask) || decode(bytes, given) || decode(bytes, vain) ||
           decode(bytes, back) || decode(bytes, heard));
  }
}

}  // namespace
}  // namespace limbo
