// Host memory that runs out in the middle of a call: the producer has lost nothing, whatever it was
// about to note. Its tables are so small that it shows.
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include "tests/unit/producer_support.h"
#include "tests/unit/short_host_memory.h"

namespace limbo {
namespace {

using namespace limbo::testing;

constexpr Capacities kScarce{.exports = 16, .pieces = 2, .claims = 512, .timelines = 1};

class ProducerMemory : public ProducerTest {
 protected:
  void SetUp() override {
    ProducerTest::SetUp();
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life_line_), 0);
    allocator_->set_lender(nullptr);
    producer_.reset();
    device_.emplace(*sim_);
    allocator_ = std::make_unique<Allocator>(*device_);
    producer_ =
        std::make_unique<Producer>(*device_, *allocator_, Incarnation{1, 2}, kScarce, 200'000);
    allocator_->set_lender(producer_.get());
  }
  void TearDown() override {
    for (const int fd : life_line_) ::close(fd);
    ProducerTest::TearDown();
  }

  // Each of the call's allocations fails in turn, then none. Until it has succeeded there are as many
  // descriptors as before.
  void repeat(const char* what, const std::function<void()>& call) {
    SCOPED_TRACE(what);
    const auto before = Balance::now().descriptors;
    bool failed = false;
    with_ever_more_memory(
        [&] {
          failed = true;
          call();
          failed = false;
        },
        [&] {
          producer_->check_invariants();
          if (failed) {
            EXPECT_EQ(Balance::now().descriptors, before);
          }
        });
  }
  ExportTicket shared(const std::byte* data) {
    std::optional<ExportTicket> ticket;
    repeat("share", [&] { ticket = share(data); });
    return *ticket;
  }
  // `held` is sent on, and taken back.
  void send_on(const PlayedConsumer& consumer, const ExportTicket& held, std::uint32_t slot) {
    const std::uint32_t lease = consumer.lease();
    ForwardRequest request = forward_request(held, slot);
    request.points[0] = {0, 0, 5};
    protocol::ClaimTarget made;
    // (Any descriptor stands for a pidfd here.)
    repeat("forward",
           [&] { made = producer_->forward(lease, request, life_line_[1], life_line_[0], 0); });
    repeat("files", [&] { (void)producer_->forwarder_files(lease); });
    std::optional<OwnOpen> own;
    repeat("open", [&] { own = producer_->open_own(made.export_index, made.generation); });
    repeat("send it on", [&] {
      producer_->pin_own(*own);
      const ExportTicket sent = producer_->share_received(*own, data_of(*own), 4096, {}, {});
      EXPECT_TRUE(producer_->withdraw(sent.export_index, sent.generation));
    });
    allocator_->unpin(own->block.block);
    repeat("heard", [&] { producer_->heard(lease, made); });
    producer_->take_back(lease, made.export_index, made.generation);
  }
  static const std::byte* data_of(const OwnOpen& own) {
    return static_cast<const std::byte*>(own.block.piece_base) + own.offset_bytes;
  }

  int life_line_[2] = {-1, -1};
  std::optional<RobustDevice> device_;
};

TEST_F(ProducerMemory, ThatRunsOutLosesNothing) {
  for (int round = 0; round < 3; ++round) {
    std::byte* const small = allocate();
    std::byte* const large = allocate(32 * kMiB);  // another piece
    const ExportTicket one = shared(small);
    const ExportTicket two = shared(large);
    std::optional<PlayedConsumer> consumer;
    repeat("lease", [&] { consumer.emplace(*producer_); });
    EXPECT_EQ(stats().leases_connected, 1U);
    std::uint32_t slot = 0;
    ASSERT_EQ(consumer->claim(two), ClaimVerdict::kStands);
    ASSERT_EQ(consumer->claim(one, &slot), ClaimVerdict::kStands);
    allocator_->free(small);
    allocator_->free(large);
    for (int again = 0; again < 2; ++again) send_on(*consumer, one, slot);
    repeat("look", [&] {
      EXPECT_EQ(producer_->holders().size(), 1U);
      EXPECT_NE(producer_->describe_holders(0), "");
      (void)producer_->drained();
      (void)producer_->next_deadline();
    });
    const std::uint32_t lease = consumer->lease();
    repeat("lost", [&] { producer_->lease_lost_context(lease); });
    repeat("gone", [&] { producer_->lease_gone(lease, "its GPU work may still run"); });
    repeat("quiet", [&] { producer_->lease_quiet(lease); });
    repeat("collect", [&] { producer_->collect(); });
    repeat("forwarders", [&] { producer_->drop_forwarders(); });
    EXPECT_EQ(stats().leases_connected + stats().leases_quarantined + stats().forwarders, 0U);
    repeat("return", [&] { allocator_->empty_cache(); });
    EXPECT_EQ(sim_->balance().allocated, 0U);
  }
}

}  // namespace
}  // namespace limbo
