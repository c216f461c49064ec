#include "ipc/questions.h"

#include <gtest/gtest.h>

#include "allocator/error.h"

namespace limbo {
namespace {

Question asked(MessageType type) {
  Question question;
  question.type = type;
  return question;
}

TEST(Questions, ComeBackAsTheyWere) {
  Question acquire = asked(MessageType::kAcquire);
  acquire.name = "weights";
  Question reap = asked(MessageType::kReap);
  reap.force = true;
  Question holders = asked(MessageType::kHolders);
  holders.from = 17;
  for (const Question& question : {acquire, reap, holders, asked(MessageType::kPublishList)}) {
    const MessageBytes bytes = encode(question);
    MessageHeader header;
    EXPECT_EQ(check_frame(bytes, 0, header), "");
    EXPECT_TRUE(is_question(static_cast<MessageType>(header.type)));
    Question back;
    ASSERT_TRUE(decode(bytes, back));
    EXPECT_EQ(back.type, question.type);
    EXPECT_EQ(back.name, question.name);
    EXPECT_EQ(back.force, question.force);
    EXPECT_EQ(back.from, question.from);
    // One byte more or less is another message.
    MessageBytes longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode(longer, back));
    EXPECT_FALSE(decode(std::span(bytes).first(bytes.size() - 1), back));
  }
  EXPECT_FALSE(is_question(MessageType::kHello));
  EXPECT_FALSE(is_question(MessageType::kAnswer));
}

// What the asker collects from one part after the other.
template <typename Line>
std::vector<Line> collect(const Answer& whole, std::vector<Line> Answer::*lines, int* parts) {
  std::vector<Line> all;
  std::uint32_t from = 0;
  do {
    const MessageBytes bytes = encode(whole, from);
    EXPECT_LE(bytes.size(), kMaxMessageBytes);
    Answer part;
    EXPECT_TRUE(decode(bytes, part));
    EXPECT_TRUE(part.next == 0 || part.next > from);
    for (const Line& line : part.*lines) all.push_back(line);
    from = part.next;
    ++*parts;
  } while (from != 0);
  return all;
}

TEST(Questions, ListsComeInPartsThatMakeTheWhole) {
  Answer names;
  names.to = MessageType::kPublishList;
  int parts = 0;
  EXPECT_TRUE(collect(names, &Answer::names, &parts).empty());
  EXPECT_EQ(parts, 1);
  for (int i = 0; i < 500; ++i) names.names.push_back(std::string(200, 'n') + std::to_string(i));
  parts = 0;
  EXPECT_EQ(collect(names, &Answer::names, &parts), names.names);
  EXPECT_GT(parts, 20);
  // From behind the end: nothing, and that is the end.
  Answer beyond;
  ASSERT_TRUE(decode(encode(names, 1'000'000), beyond));
  EXPECT_EQ(beyond.next, 0U);
  EXPECT_TRUE(beyond.names.empty());
}

TEST(Questions, HoldersComeBackWithEveryNumber) {
  Answer answer;
  answer.to = MessageType::kHolders;
  Holder holder;
  holder.pid = 4711;
  holder.incarnation = std::string(32, 'f');
  holder.state = Holder::State::kQuarantine;
  holder.why = std::string(10'000, 'w');  // cut
  holder.claims = 1;
  holder.bytes = 2;
  holder.mapped_pieces = 3;
  holder.mapped_bytes = 4;
  holder.oldest_claim = std::chrono::milliseconds(5);
  answer.holders.assign(100, holder);
  int parts = 0;
  const std::vector<Holder> back = collect(answer, &Answer::holders, &parts);
  ASSERT_EQ(back.size(), 100U);
  EXPECT_GT(parts, 1);
  for (const Holder& each : {back.front(), back.back()}) {
    EXPECT_EQ(each.pid, holder.pid);
    EXPECT_EQ(each.incarnation, holder.incarnation);
    EXPECT_EQ(each.state, holder.state);
    EXPECT_EQ(each.why, holder.why.substr(0, 512));
    EXPECT_EQ(each.claims, 1U);
    EXPECT_EQ(each.bytes, 2U);
    EXPECT_EQ(each.mapped_pieces, 3U);
    EXPECT_EQ(each.mapped_bytes, 4U);
    EXPECT_EQ(each.oldest_claim.count(), 5);
  }
}

TEST(Questions, AnswersThatCannotBeAreRefused) {
  Answer answer;
  answer.to = MessageType::kAcquire;
  answer.descriptor.assign(kMaxAnsweredDescriptorBytes, std::byte{1});
  Answer back;
  ASSERT_TRUE(decode(encode(answer), back));
  EXPECT_EQ(back.descriptor, answer.descriptor);
  answer.descriptor.push_back(std::byte{1});
  try {
    (void)encode(answer);
    FAIL() << "longer than a message";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadArgument);
  }
  answer.descriptor.clear();
  EXPECT_FALSE(decode(encode(answer), back));  // no descriptor at all
  answer.to = MessageType::kReap;
  MessageBytes bytes = encode(answer);
  EXPECT_TRUE(decode(bytes, back));
  bytes.pop_back();
  EXPECT_FALSE(decode(bytes, back));
  bytes[kMessageHeaderBytes] = std::byte{99};  // to a question that there is not
  EXPECT_FALSE(decode(bytes, back));
}

}  // namespace
}  // namespace limbo
