// Leases that end by their consumer's word.
#include <fcntl.h>

#include "ipc/shared_memory.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

using ProducerLeft = ProducerTest;

// A word ends a lease only where its row bears it out; what it holds, or maps, stays.
TEST_F(ProducerLeft, ALeaseIsLeftOnlyWhenNothingOfItIsLeft) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  consumer.mark_mapped(ticket);
  allocator_->free(data);
  EXPECT_FALSE(producer_->lease_left(consumer.lease()));
  EXPECT_EQ(stats().held_claims, 1U);
  EXPECT_EQ(limbo_blocks(), 1);
  consumer.release(ticket);
  EXPECT_FALSE(producer_->lease_left(consumer.lease())) << "it maps the piece still";
  EXPECT_EQ(limbo_blocks(), 0) << "what it had released is seen";
  consumer.mark_mapped(ticket, false);
  EXPECT_TRUE(producer_->lease_left(consumer.lease()));
  EXPECT_EQ(stats().leases_connected, 0U);
  EXPECT_EQ(stats().leases_swept, 0U);
  EXPECT_FALSE(producer_->lease_left(consumer.lease()));
}

// Whatever a consumer writes after it has said so: nobody reads it, and others' claims stand.
TEST_F(ProducerLeft, WhoLeavesAndClaimsOnHarmsOnlyItself) {
  PlayedConsumer liar(*producer_);
  PlayedConsumer other(*producer_, 4712);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(other.claim(ticket), ClaimVerdict::kStands);
  const SharedMemory kept =
      SharedMemory::map_received("kept", ::fcntl(liar.grant().row_fd, F_DUPFD_CLOEXEC, 0),
                                 row_layout(liar.grant().capacities).total, ReceiverMay::kWrite);
  ASSERT_TRUE(producer_->lease_left(liar.lease()));
  RowView row(kept.data(), liar.grant().capacities);
  protocol::StdMemory memory;
  const protocol::ClaimTarget target{ticket.export_index, ticket.generation};
  protocol::hold(memory, row, 0, target);
  protocol::release_by_host(memory, row, 0, target);
  producer_->decline(liar.lease(), ticket.export_index, ticket.generation);
  producer_->collect();
  EXPECT_EQ(stats().held_claims, 1U);
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 1);
  other.release(ticket);
}

}  // namespace
}  // namespace limbo
