// A consumer that scribbles in its own row, beside an honest one, with a real producer.
//
// The input is a list of actions: of the owner, of the honest consumer (by the protocol's own
// functions), of the broken one (any word of its row and of its timelines, any message, sending on what
// its row says that it holds). After every action: the
// producer's invariants hold; what the honest one holds is open, pinned, not handed out again, and
// its claim word is untouched; a piece that it marks is not returned. All the harm there may be:
// exports stay pinned, promises are used up, the producer scans, at its rate. When the broken one is
// quiet and the honest one has let go, everything is back.
#include "tests/fuzz/claim_rows_forwards.h"
#include "tests/fuzz/claim_rows_world.h"

namespace limbo::fuzz::claim_rows {

// ---- the owner ------------------------------------------------------------------------------

void World::share(Input& input) {
  if (messages_.size() >= kMostMessages) return;
  Message message;
  message.size_bytes = kBlockBytes[input.below(std::size(kBlockBytes))];
  message.data = static_cast<std::byte*>(allocator().allocate(message.size_bytes, {}));
  for (const Message& other : messages_) {
    require(other.held == 0 || message.data + message.size_bytes <= other.data ||
                other.data + other.size_bytes <= message.data,
            "a block that is held is not handed out again");
  }
  try {
    message.ticket = producer_->share(message.data, message.size_bytes, {});
  } catch (const Error& refused) {
    allocator().free(message.data);
    require(refused.code() == ErrorCode::kLedgerFull, "share fails only when the table is full");
    return;
  }
  messages_.push_back(message);
}

void World::share_again(Message& message) {
  if (!message.owned || messages_.size() >= kMostMessages) return;
  Message again = message;
  again.held = 0;
  again.slot.reset();
  try {
    again.ticket = producer_->share(again.data, again.size_bytes, {});
  } catch (const Error& refused) {
    require(refused.code() == ErrorCode::kLedgerFull, "share fails only when the table is full");
    return;
  }
  messages_.push_back(again);
}

void World::free(Message& message) {
  if (!message.owned) return;
  allocator().free(message.data);
  for (Message& each : messages_) {
    if (each.data == message.data) each.owned = false;
  }
}

void World::owner_acts(Input& input) {
  switch (input.below(8)) {
    case 0:
      (void)producer_->collect();
      return;
    case 1:
      ++thorough_looks_;
      (void)producer_->collect_thoroughly(0, milliseconds(100));
      return;
    case 2:
      producer_->run_time_limits(Producer::Clock::now() + hours(input.below(2)));
      return;
    case 3:
      (void)producer_->holders();
      (void)producer_->describe_holders(0);
      return;
    case 4:
      (void)producer_->drained();
      return;
    case 5:
      producer_->row_half_full(broken_->lease());
      return;
    case 6:
      allocator().empty_cache();
      return;
    default:
      if (Message* message = pick(input)) {
        (void)producer_->withdraw(message->ticket.export_index, message->ticket.generation);
      }
  }
}

// ---- the honest consumer --------------------------------------------------------------------

void World::claim(Message& message) {
  std::uint32_t slot = 0;
  if (honest_->claim(message.ticket, &slot) != ClaimVerdict::kStands) return;
  if (message.held++ == 0) message.slot = slot;
  honest_->mark_mapped(message.ticket);
  marked_.push_back(message.ticket);
}

void World::release(Message& message) {
  if (message.held == 0) return;
  honest_->release(message.ticket);
  --message.held;
  message.slot.reset();  // of the others nobody wrote down which
}

// ---- the broken consumer --------------------------------------------------------------------

// A word that is near enough to a right one to be taken for it, or anything.
std::uint64_t World::claim_word(Input& input) {
  const std::size_t kind = input.below(4);
  const Message* message = pick(input);
  if (kind == 3 || message == nullptr) return input.number<std::uint64_t>();
  const protocol::ClaimTarget target{message->ticket.export_index + (kind == 2 ? 32U : 0U),
                                     message->ticket.generation + (kind == 1 ? 1U : 0U)};
  return protocol::claim_bits(target, static_cast<ClaimState>(input.below(4)));
}

void World::scribble(Input& input) {
  const RowView& row = broken_->row();
  switch (input.below(7)) {
    case 0: {
      const std::uint32_t at = slot(input);
      row.claim(at)->store(claim_word(input));
      return;
    }
    case 1: {
      const std::uint32_t at = slot(input);
      row.claim(at)->store(claim_word(input));
      row.group_dirty_host(at / protocol::kGroupClaims)->fetch_add(1);
      row.lease_dirty_host()->fetch_add(1);
      return;
    }
    case 2:
      (input.below(2) == 0 ? row.lease_dirty_host() : row.lease_dirty_gpu())
          ->store(input.number<std::uint64_t>());
      return;
    case 3: {
      const auto group = static_cast<std::uint32_t>(input.below(row.groups()));
      (input.below(2) == 0 ? row.group_dirty_host(group) : row.group_dirty_gpu(group))
          ->store(input.number<std::uint64_t>());
      return;
    }
    case 4:
      row.mapped(static_cast<std::uint32_t>(input.below(row.pieces())))
          ->store(input.number<std::uint64_t>());
      return;
    case 5:
      return timeline_scribble(input)();
    default:
      if (const Message* message = pick(input)) broken_->mark_mapped(message->ticket);
  }
}

std::function<void()> World::timeline_scribble(Input& input) {
  Timeline& timeline = static_cast<Timeline*>(timelines_.data())[input.below(tables().timelines)];
  SharedWord& word = input.below(4) == 0 ? timeline.ended_at : timeline.value;
  const std::size_t kind = input.below(6);
  const std::uint64_t value = kind < 5 ? kNumbers[kind] : input.number<std::uint64_t>();
  return [&word, value] { word.store(value); };
}

void World::claim_by_broken(Input& input) {
  const std::uint32_t at = slot(input);
  const Message* message = pick(input);
  if (message == nullptr) return;
  const protocol::ClaimTarget target{message->ticket.export_index, message->ticket.generation};
  protocol::StdMemory memory;
  const RowView& row = broken_->row();
  if (input.below(2) == 0) {
    SharedWord* word = broken_->ledger().export_word(target.export_index);
    (void)protocol::claim(memory, row, at, word, target, [] { return false; });
  } else {
    protocol::release_by_host(memory, row, at, target);
  }
}

// Makes everything look changed, again and again, with a word in each group that shows a scan.
void World::storm() {
  const RowView& row = broken_->row();
  for (int round = 0; round < 4; ++round) {
    for (std::uint32_t group = 0; group < row.groups(); ++group) {
      row.claim(group * protocol::kGroupClaims + 300)
          ->store(protocol::claim_bits({31, protocol::kMaxGeneration}, ClaimState::kReleased));
      row.group_dirty_gpu(group)->fetch_add(1);
    }
    row.lease_dirty_gpu()->fetch_add(1);
    (void)producer_->collect();
    for (std::uint32_t group = 0; group < row.groups(); ++group) {
      if (row.claim(group * protocol::kGroupClaims + 300)->load() == 0) ++scans_seen_;
    }
  }
}

// ---- rules ----------------------------------------------------------------------------------

void World::check_scans() {
  const double passed_s = std::chrono::duration<double>(Producer::Clock::now() - began_).count();
  const auto burst = static_cast<double>(std::max<std::int64_t>(scans_per_second_ / 10, 1));
  const double at_most = burst * static_cast<double>(1 + thorough_looks_) +
                         passed_s * static_cast<double>(scans_per_second_) + 1;
  require(static_cast<double>(scans_seen_) <= at_most, "a row is scanned at its rate at most");
}

void World::check() {
  producer_->check_invariants();
  for (const Message& message : messages_) {
    if (message.held == 0) continue;
    const protocol::ExportWord word =
        protocol::decode_export(honest_->ledger().export_word(message.ticket.export_index)->load());
    require(
        word.state != protocol::ExportState::kFree && word.generation == message.ticket.generation,
        "an export that an honest consumer holds is not over");
    if (message.slot) {
      require(honest_->row().claim(*message.slot)->load() ==
                  protocol::claim_bits({message.ticket.export_index, message.ticket.generation},
                                       ClaimState::kHeld),
              "an honest claim is not released by another");
    }
  }
  for (const ExportTicket& ticket : marked_) {
    const std::uint64_t word = honest_->ledger().piece(ticket.piece_index).word.load();
    require((word & kPieceInUse) != 0 && piece_generation(word) == ticket.piece_generation,
            "a piece that is marked as mapped is not returned");
  }
  check_scans();
}

void World::end() {
  producer_->lease_gone(broken_->lease(), "it scribbled");
  producer_->lease_quiet(broken_->lease());
  producer_->hears_no_more(honest_->lease());  // of what it was not told that it had sent on
  check();
  honest_->release_all();
  for (Message& message : messages_) {
    message.held = 0;
    free(message);
  }
  for (const ExportTicket& ticket : marked_) honest_->mark_mapped(ticket, false);
  producer_->run_time_limits(Producer::Clock::now() + hours(1));
  for (int look = 0; look < 2; ++look) (void)producer_->collect_thoroughly(0, milliseconds(100));
  producer_->check_invariants();
  SharingStats stats;
  producer_->add_stats(stats);
  require(stats.exports_open == 0 && stats.in_flight == 0 && stats.held_claims == 0,
          "when the broken consumer is quiet, every export is over");
  producer_->drop_forwarders();
  require(stats.forwarders == 0, "when all exports are over, none names who has sent it on");
  require(allocator().stats(0).limbo_blocks == 0, "no block stays in limbo");
  require(allocator().stats(0).active_bytes[testing::kAllSizes].current == 0, "no block stays");
  allocator().check_invariants();
  allocator().empty_cache();
  require(sim().balance().allocated == 0, "all memory goes back to the device");
}

void World::act(Input& input) {
  switch (input.below(11)) {
    case 0:
      return share(input);
    case 1:
      if (Message* message = pick(input)) share_again(*message);
      return;
    case 2:
      if (Message* message = pick(input)) free(*message);
      return;
    case 3:
      if (Message* message = pick(input)) claim(*message);
      return;
    case 4:
      if (Message* message = pick(input)) release(*message);
      return;
    case 5:
      return owner_acts(input);
    case 6:
      return claim_by_broken(input);
    case 7: {
      const auto index = input.number<std::uint32_t>();
      const auto generation = input.number<std::uint64_t>();
      const Message* message = pick(input);
      return message != nullptr && index % 2 == 0
                 ? producer_->decline(broken_->lease(), message->ticket.export_index,
                                      message->ticket.generation)
                 : producer_->decline(broken_->lease(), index, generation);
    }
    case 8:
      return storm();
    case 9:
      return scribble(input);
    default:
      return sends_on(input);
  }
}

LIMBO_FUZZ_TARGET(claim_rows) {
  Input input(bytes);
  World world(kScansPerSecond[input.below(std::size(kScansPerSecond))]);
  for (std::size_t action = 0; action < kMostActions && input.left() > 0; ++action) {
    world.act(input);
    world.check();
  }
  world.end();
}

}  // namespace limbo::fuzz::claim_rows
