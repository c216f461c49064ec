// A consumer's release.
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

using ReleaseWithoutDirty = ProducerTest;

// Released by the host, the block comes back at the next collect and not only when memory runs out.
TEST_F(ReleaseWithoutDirty, AHostsReleaseIsSeenByTheNextCollect) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  allocator_->free(data);
  producer_->collect();
  ASSERT_EQ(stats().held_claims, 1U);
  consumer.release(ticket);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0);
  producer_->collect_thoroughly(0, std::chrono::seconds(1));
}

}  // namespace
}  // namespace limbo
