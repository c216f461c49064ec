// The orders between a row and the producer that reads it: the protocol's own functions, with the
// other side acting before each single access in turn.
#include <gtest/gtest.h>

#include <functional>

#include "ipc/fail_point_hooks.h"
#include "tests/unit/producer_support.h"
#include "tests/unit/protocol_support.h"

namespace limbo {
namespace {

using namespace protocol::testing;
using namespace limbo::testing;
using protocol::claim_bits;
using protocol::ClaimVerdict;
using protocol::ExportState;
using protocol::kGroupClaims;
using protocol::Look;

constexpr std::uint64_t kGeneration = 7;
constexpr std::uint32_t kSlot = 5;
constexpr auto kNoPatience = [] { return false; };

// One export, one row that is in the list, and one that comes later.
struct World {
  World() { memory[exports.word(0)] = open_word(kGeneration); }

  ClaimVerdict claim(const PlainRow& by) {
    return protocol::claim(memory, by, kSlot, exports.word(0), {0, kGeneration}, kNoPatience);
  }
  void release(const PlainRow& by) {
    protocol::release_by_host(memory, by, kSlot, {0, kGeneration});
  }
  void note() {
    protocol::note_row(memory, row, exports, std::memory_order_acquire, Look::kChanged);
  }
  void close() {
    protocol::close_batch(memory, exports, std::vector<std::uint32_t>{0}, [this] { return list; });
  }
  [[nodiscard]] bool over() { return exports.records[0].closed > 0; }
  [[nodiscard]] int held() { return exports.records[0].held; }

  // Runs `act` before access number `when` of what `run` does; false when there are fewer.
  bool at_access(std::size_t when, const std::function<void()>& act,
                 const std::function<void()>& run) {
    bool acted = false;
    const std::size_t from = memory.accesses.size();
    memory.before_access = [&](std::size_t number, const std::string&) {
      if (acted || number != from + when) return;
      acted = true;
      act();
    };
    run();
    memory.before_access = nullptr;
    return acted;
  }

  RecordingMemory memory;
  PlainRow row{"row"};
  PlainRow newcomer{"newcomer"};
  PlainExports exports;
  std::vector<PlainRow*> list{&row};
};

// `body(world, when)` for when = 0, 1, ... until it says that there is no such access any more, or
// has failed. Returns how many there were.
template <class Body>
std::size_t at_every_access(Body&& body) {
  std::size_t when = 0;
  for (;; ++when) {
    World world;
    if (!body(world, when) || ::testing::Test::HasFailure()) return when;
  }
}

// ---- releasing --------------------------------------------------------------------------------

// The producer looks before each access of a release: the look after it finds the release.
TEST(DirtyFirst, ALookAtAnyTimeOfAHostsReleaseMissesNothing) {
  const std::size_t accesses = at_every_access([](World& world, std::size_t when) {
    EXPECT_EQ(world.claim(world.row), ClaimVerdict::kStands);
    const bool acted = world.at_access(
        when, [&] { world.note(); }, [&] { world.release(world.row); });
    world.note();
    EXPECT_EQ(world.held(), 0) << "a look before access " << when;
    return acted;
  });
  EXPECT_EQ(accesses, 3U);
}

// The same for the batch that a stream writes.
TEST(DirtyFirst, ALookAtAnyTimeOfAStreamsBatchMissesNothing) {
  const std::size_t accesses = at_every_access([](World& world, std::size_t when) {
    EXPECT_EQ(world.claim(world.row), ClaimVerdict::kStands);
    std::uint64_t number = 0;
    const protocol::Release release{kSlot, {0, kGeneration}};
    const bool acted = world.at_access(
        when, [&] { world.note(); },
        [&] {
          protocol::write_release_batch(
              world.row, std::span(&release, 1), 255, [&] { return ++number; },
              [&](const std::string& word, std::uint64_t value) {
                world.memory.store(word, value, std::memory_order_release);
              });
        });
    world.note();
    EXPECT_EQ(world.held(), 0) << "a look before write " << when;
    return acted;
  });
  EXPECT_EQ(accesses, 3U);
}

// ---- noting -----------------------------------------------------------------------------------

// A scan of the row is under way, for another claim's sake, when this one is made. The closing after
// it knows of it.
TEST(SeenAfterScan, AClaimDuringAScanIsNotClosedUnder) {
  const std::size_t accesses = at_every_access([](World& world, std::size_t when) {
    world.memory[world.exports.word(1)] = open_word(kGeneration);
    protocol::hold(world.memory, world.row, 9, {1, kGeneration});
    ClaimVerdict verdict = ClaimVerdict::kGone;
    const bool acted = world.at_access(
        when, [&] { verdict = world.claim(world.row); }, [&] { world.note(); });
    if (!acted) return false;
    EXPECT_EQ(verdict, ClaimVerdict::kStands);
    if (world.held() == 0) world.close();
    EXPECT_FALSE(world.over()) << "closed under a holder that claimed before access " << when;
    return true;
  });
  EXPECT_GT(accesses, kGroupClaims);
}

TEST(SeenAfterScan, AReleaseDuringAScanComesBackWithTheNext) {
  const std::size_t accesses = at_every_access([](World& world, std::size_t when) {
    EXPECT_EQ(world.claim(world.row), ClaimVerdict::kStands);
    const bool acted = world.at_access(
        when, [&] { world.release(world.row); }, [&] { world.note(); });
    world.note();
    EXPECT_EQ(world.held(), acted ? 0 : 1) << "released before access " << when;
    return acted;
  });
  EXPECT_GT(accesses, kGroupClaims);
}

// ---- claiming and closing ---------------------------------------------------------------------

// A closing before each access of a claim: where the claim stands, the export is not over.
TEST(NoRecheck, AClosingAtAnyTimeOfAClaim) {
  int stood = 0;
  int refused = 0;
  const std::size_t accesses = at_every_access([&](World& world, std::size_t when) {
    ClaimVerdict verdict = ClaimVerdict::kGone;
    const bool acted = world.at_access(
        when, [&] { world.close(); }, [&] { verdict = world.claim(world.row); });
    if (verdict == ClaimVerdict::kStands) {
      ++stood;
      EXPECT_FALSE(world.over()) << "a closing before access " << when;
    } else {
      ++refused;
    }
    return acted;
  });
  EXPECT_GE(accesses, 4U);
  EXPECT_GT(stood, 0);
  EXPECT_GT(refused, 0);
}

// The other way round: a claim before each access of a closing.
TEST(ScanBeforeClosing, AClaimAtAnyTimeOfAClosing) {
  int stood = 0;
  int refused = 0;
  at_every_access([&](World& world, std::size_t when) {
    ClaimVerdict verdict = ClaimVerdict::kGone;
    const bool acted = world.at_access(
        when, [&] { verdict = world.claim(world.row); }, [&] { world.close(); });
    if (!acted) return false;
    ++(verdict == ClaimVerdict::kStands ? stood : refused);
    if (verdict == ClaimVerdict::kStands) {
      EXPECT_FALSE(world.over()) << "claimed before access " << when;
    }
    return true;
  });
  EXPECT_GT(stood, 0);
  EXPECT_GT(refused, 0);
}

// A lease that comes, and claims at once, before each access of a closing.
TEST(LeasesBeforeClosing, ANewcomersClaimAtAnyTimeOfAClosing) {
  int stood = 0;
  int refused = 0;
  at_every_access([&](World& world, std::size_t when) {
    ClaimVerdict verdict = ClaimVerdict::kGone;
    const bool acted = world.at_access(
        when,
        [&] {
          world.list.push_back(&world.newcomer);
          verdict = world.claim(world.newcomer);
        },
        [&] { world.close(); });
    if (!acted) return false;
    ++(verdict == ClaimVerdict::kStands ? stood : refused);
    if (verdict == ClaimVerdict::kStands) {
      EXPECT_FALSE(world.over()) << "came before access " << when;
    }
    return true;
  });
  EXPECT_GT(stood, 0);
  EXPECT_GT(refused, 0);
}

// ---- leases -----------------------------------------------------------------------------------

using LeaseListedLate = ProducerTest;

// The grant is all that a consumer needs to claim; so the next closing knows of it.
TEST_F(LeaseListedLate, AClaimMadeAtOnceIsSeenByTheNextClosing) {
  std::byte* data = allocate();
  const ExportTicket ticket = share(data);
  const OwnOpen own = producer_->open_own(ticket.export_index, ticket.generation);
  allocator_->unpin(own.block.block);
  allocator_->free(data);  // nothing in flight, nobody holds it, and the owner has let go
  PlayedConsumer newcomer(*producer_);
  ASSERT_EQ(newcomer.claim(ticket), ClaimVerdict::kStands);
  producer_->collect();
  EXPECT_EQ(limbo_blocks(), 1) << "reused under its holder";
  EXPECT_EQ(word(ticket).state, ExportState::kOpen);
  newcomer.release_all();
}

}  // namespace
}  // namespace limbo
