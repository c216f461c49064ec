// What a producer tells people: who holds what, and who maps what should be returned.
#include "ipc/incarnation.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

using ProducerReport = ProducerTest;

TEST_F(ProducerReport, HoldersAreNamedWithWhatTheyHold) {
  PlayedConsumer a(*producer_, 11);
  PlayedConsumer b(*producer_, 12);
  PlayedConsumer idle(*producer_, 13);
  std::byte* one = allocate(1 << 20);
  std::byte* two = allocate(4 << 20);
  const ExportTicket first = share(one);
  const ExportTicket second = share(two);
  const ExportTicket third = share(two);
  ASSERT_EQ(a.claim(first), ClaimVerdict::kStands);
  ASSERT_EQ(a.claim(second), ClaimVerdict::kStands);
  ASSERT_EQ(a.claim(second), ClaimVerdict::kStands);  // counts once in bytes
  ASSERT_EQ(b.claim(second), ClaimVerdict::kStands);
  a.mark_mapped(first);
  a.mark_mapped(second);
  const std::vector<Holder> holders = producer_->holders();
  ASSERT_EQ(holders.size(), 2U);
  EXPECT_EQ(holders[0].pid, 11);
  EXPECT_EQ(holders[0].incarnation, to_string(a.incarnation()));
  EXPECT_EQ(holders[0].claims, 3U);
  EXPECT_EQ(holders[0].bytes, 5U << 20);
  EXPECT_EQ(holders[0].mapped_pieces, first.piece_index == second.piece_index ? 1U : 2U);
  EXPECT_EQ(holders[0].mapped_bytes, allocator_->stats(0).reserved_bytes[kAllSizes].current);
  EXPECT_EQ(holders[1].pid, 12);
  EXPECT_EQ(holders[1].bytes, 4U << 20);
  EXPECT_EQ(holders[1].mapped_pieces, 0U);
  const std::string text = producer_->describe_holders(0);
  EXPECT_TRUE(contains(text, "process 11 holds 5.00 MiB by 3 messages")) << text;
  EXPECT_TRUE(contains(text, "process 12 holds 4.00 MiB by 1 message")) << text;
  EXPECT_TRUE(contains(text, "1 message of 4.00 MiB still to be opened")) << text;
  EXPECT_EQ(producer_->describe_holders(1), "");
  a.release_all();
  b.release_all();
  producer_->withdraw(third.export_index, third.generation);
  allocator_->free(one);
  allocator_->free(two);
  producer_->collect();
  EXPECT_EQ(producer_->describe_holders(0), "");
}

// Memory that nobody uses, and that cannot be returned because somebody maps it, is named with him.
TEST_F(ProducerReport, WhoeverMapsWhatShouldBeReturnedIsNamed) {
  PlayedConsumer consumer(*producer_, 11);
  std::byte* blocks[] = {allocate(32 << 20), allocate(32 << 20)};
  const ExportTicket tickets[] = {share(blocks[0]), share(blocks[1])};
  for (const ExportTicket& ticket : tickets) {
    ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
    consumer.mark_mapped(ticket);
  }
  consumer.release_all();
  for (std::byte* block : blocks) allocator_->free(block);
  producer_->collect();
  EXPECT_EQ(producer_->describe_holders(0), "");  // nobody wants it back
  allocator_->empty_cache();
  EXPECT_EQ(allocator_->stats(0).held_for_readers_bytes, 64 << 20);
  EXPECT_EQ(producer_->describe_holders(0),
            "Lent memory: process 11 still maps 64.00 MiB that should be returned.");
  EXPECT_EQ(producer_->describe_holders(1), "");
  ASSERT_EQ(producer_->holders().size(), 1U);
  EXPECT_EQ(producer_->holders()[0].mapped_bytes, 64U << 20);
  try {
    (void)allocate(std::size_t{2040} << 20);
    ADD_FAILURE() << "room that is mapped by a consumer";
  } catch (const OutOfMemory& error) {
    EXPECT_TRUE(contains(error.what(), "64.00 MiB is free but cannot be returned")) << error.what();
    EXPECT_TRUE(contains(error.what(), "process 11 still maps 64.00 MiB")) << error.what();
  }
  consumer.mark_mapped(tickets[0], false);
  allocator_->empty_cache();
  EXPECT_TRUE(contains(producer_->describe_holders(0), "still maps 32.00 MiB"));
  // Lent again, it is in use and not waited for.
  std::byte* data = allocate(32 << 20);
  const ExportTicket again = share(data);
  EXPECT_EQ(again.piece_index, tickets[1].piece_index);
  ASSERT_EQ(consumer.claim(again), ClaimVerdict::kStands);
  producer_->collect();
  EXPECT_EQ(producer_->describe_holders(0),
            "Lent memory: process 11 holds 32.00 MiB by 1 message.");
  consumer.mark_mapped(again, false);
  consumer.release_all();
  allocator_->free(data);
}

}  // namespace
}  // namespace limbo
