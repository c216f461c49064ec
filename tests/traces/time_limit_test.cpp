// Time limits: they end what nobody has opened, and nothing else.
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;
using std::chrono::hours;
using std::chrono::milliseconds;

class TtlOnHeld : public ProducerTest {
 protected:
  // Long after every time limit, and a collect.
  void much_later() {
    producer_->run_time_limits(Producer::Clock::now() + hours(24));
    producer_->collect();
  }
};

TEST_F(TtlOnHeld, WhatIsHeldOutlivesItsTimeLimit) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share_for(data, milliseconds(0));
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  producer_->collect();
  allocator_->free(data);
  much_later();
  EXPECT_EQ(limbo_blocks(), 1) << "reused under its holder";
  consumer.release_all();
}

// HELD is stored, and the producer has not looked yet when the time is over.
TEST_F(TtlOnHeld, WhatIsClaimedAndNotNotedYetToo) {
  PlayedConsumer consumer(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share_for(data, milliseconds(0));
  allocator_->free(data);
  ASSERT_EQ(consumer.claim(ticket), ClaimVerdict::kStands);
  much_later();
  EXPECT_EQ(limbo_blocks(), 1) << "reused under its holder";
  EXPECT_EQ(word(ticket).state, protocol::ExportState::kDraining);  // and nobody else may claim it
  consumer.release_all();
}

}  // namespace
}  // namespace limbo
