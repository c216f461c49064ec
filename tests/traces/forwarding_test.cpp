// Forwarding: whose claim may be sent on, and whom the third process waits for.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/timelines.h"
#include "tests/unit/producer_support.h"

namespace limbo {
namespace {

using namespace limbo::testing;

class ForwardTraces : public ProducerTest {
 protected:
  void SetUp() override {
    ProducerTest::SetUp();
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, life_line_), 0);
  }
  void TearDown() override {
    for (const int fd : life_line_) ::close(fd);
    ProducerTest::TearDown();
  }
  static ForwardRequest request(std::uint32_t slot, const ExportTicket& held) {
    ForwardRequest request;
    request.slot = slot;
    request.held = {held.export_index, held.generation};
    request.offset_bytes = held.offset_bytes;
    request.size_bytes = held.size_bytes;
    request.time_limit = std::chrono::hours(1);
    return request;
  }
  protocol::ClaimTarget forward(const PlayedConsumer& asker, const ForwardRequest& request) {
    // (Any descriptor stands for a pidfd here.)
    return producer_->forward(asker.lease(), request, life_line_[1], life_line_[0], 0);
  }

  int life_line_[2] = {-1, -1};
};

using ForwardWithoutNote = ForwardTraces;
using ForwardWithoutOwnPoints = ForwardTraces;

// The consumer has let go, which no pass has seen yet; its question was on the way meanwhile.
TEST_F(ForwardWithoutNote, AClaimThatWasReleasedPinsNothingAnew) {
  PlayedConsumer asker(*producer_);
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.claim(ticket, &slot), ClaimVerdict::kStands);
  producer_->collect();
  asker.release_all();
  EXPECT_ERROR((void)forward(asker, request(slot, ticket)), kGone);
  allocator_->free(data);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 0) << "a block that nobody holds is pinned";
  EXPECT_EQ(stats().in_flight, 0U);
}

// The forwarder writes, and sends on: whoever opens that comes behind its write.
TEST_F(ForwardWithoutOwnPoints, TheReaderComesBehindTheForwardersWrite) {
  PlayedConsumer asker(*producer_);
  const StreamRef writing{0, sim_->create_stream(0)};
  const StreamRef reading{0, sim_->create_stream(0)};
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  std::uint32_t slot = 0;
  ASSERT_EQ(asker.claim(ticket, &slot), ClaimVerdict::kStands);
  {
    Timelines timelines(*sim_, small_tables().timelines,
                        SharedMemory::map_received(
                            "test", ::fcntl(asker.grant().own_timelines_fd, F_DUPFD_CLOEXEC, 0),
                            timelines_bytes(small_tables()), ReceiverMay::kWrite));
    const SimHold write = sim_->hold_stream(writing);
    ForwardRequest ask = request(slot, ticket);
    ask.points[0] = timelines.advance(writing);
    const protocol::ClaimTarget made = forward(asker, ask);
    const OwnOpen own = producer_->open_own(made.export_index, made.generation);
    producer_->wait_own(reading, own);
    const EventHandle read = sim_->create_event(0);
    sim_->record_event(reading, read);
    EXPECT_FALSE(
        eventually([&] { return sim_->query_event(0, read); }, std::chrono::milliseconds(50)))
        << "the reader is early";
    sim_->release_hold(write);
    sim_->synchronize_stream(reading);
    sim_->synchronize_stream(writing);
    sim_->destroy_event(0, read);
    allocator_->unpin(own.block.block);
  }
  asker.release_all();
  allocator_->free(data);
  producer_->collect();
  asker.die();
  producer_->drop_forwarders();
  for (const StreamRef stream : {writing, reading}) sim_->destroy_stream(stream);
}

}  // namespace
}  // namespace limbo
