// Sending on: what the honest consumer holds, and what the broken one says that it holds; and what the
// owner makes of the timelines of both, of which the broken one sets its own at any moment.
#pragma once

#include "tests/fuzz/claim_rows_world.h"

namespace limbo::fuzz::claim_rows {

inline constexpr std::uint64_t kNumbers[] = {0, 1, 2, protocol::kTimelineEnded, ~std::uint64_t{0}};

// What is asked for; a broken one may ask for anything.
inline ForwardRequest request_for(Input& input, const Message& message, std::uint32_t at,
                                  bool broken) {
  constexpr std::uint32_t kConsumers[] = {1, 2, 1'000'000, 0};
  const std::size_t kinds = broken ? 1 : 0;
  ForwardRequest request;
  request.slot = at;
  request.held = {message.ticket.export_index, message.ticket.generation};
  request.offset_bytes = message.ticket.offset_bytes;
  request.size_bytes = message.ticket.size_bytes;
  request.consumers = kConsumers[input.below(3 + kinds)];
  request.time_limit = milliseconds(input.below(2) * 600'000);
  for (TimelinePoint& point : request.points) {
    point.index = static_cast<std::uint32_t>(input.below(4 + kinds));
    point.number = kNumbers[input.below(3 + 2 * kinds)];
  }
  if (!broken) {
    // Of further messages, by either.
    for (std::size_t named = input.below(3); named > 0; --named) {
      request.also_behind.push_back({static_cast<std::uint32_t>(1 + input.below(2)),
                                     static_cast<std::uint32_t>(input.below(4)),
                                     1 + input.below(2)});
    }
    return request;
  }
  switch (input.below(4)) {
    case 0:
      request.offset_bytes += input.number<std::uint64_t>();
      break;
    case 1:
      request.size_bytes = input.number<std::uint64_t>();
      break;
    case 2:
      request.held = {input.number<std::uint32_t>(), input.number<std::uint64_t>()};
      break;
    default:
      request.also_lost = input.below(2) == 1;
      for (std::size_t named = input.below(66); named > 0; --named) {
        request.also_behind.push_back({static_cast<std::uint32_t>(input.below(4)),
                                       static_cast<std::uint32_t>(input.below(5)),
                                       kNumbers[input.below(std::size(kNumbers))]});
      }
      break;
  }
  return request;
}

inline void World::forward(Input& input, PlayedConsumer& by, const Message& message,
                           std::uint32_t at) {
  const bool broken = &by == broken_.get();
  const ForwardRequest request = request_for(input, message, at, broken);
  Message on = message;
  on.sent_by = broken ? SentBy::kBroken : SentBy::kHonest;
  on.held = 0;
  on.slot.reset();
  if (input.below(4) == 0) at_fail_point("forward.after_pin", timeline_scribble(input));
  const bool may_be_late = broken || !request.also_behind.empty();
  try {
    const auto made =
        producer_->forward(by.lease(), request, any_descriptor(), any_descriptor(), 0);
    if (input.below(4) != 0) producer_->heard(by.lease(), made);
    on.ticket.export_index = made.export_index;
    on.ticket.generation = made.generation;
  } catch (const Error& refused) {
    at_fail_point("forward.after_pin", {});
    const ErrorCode code = refused.code();
    require(code == ErrorCode::kGone || code == ErrorCode::kWithdrawn ||
                code == ErrorCode::kExpired || code == ErrorCode::kLedgerFull ||
                (broken && code == ErrorCode::kBadArgument) ||
                (may_be_late && code == ErrorCode::kNotAvailableYet),
            "what cannot be sent on is refused in one of the ways that are documented");
    return;
  }
  at_fail_point("forward.after_pin", {});
  require(broken || producer_->forwarder_files(by.lease()).pidfd.valid(),
          "whoever has sent on can be waited for");
  // What came of a name that it had made up nobody else has heard of.
  const bool as_asked =
      request.held == protocol::ClaimTarget{message.ticket.export_index, message.ticket.generation};
  on.ticket.offset_bytes = request.offset_bytes;
  on.ticket.size_bytes = request.size_bytes;
  if (as_asked && messages_.size() < kMostMessages) messages_.push_back(on);
}

inline void World::forward_by_honest(Input& input) {
  const Message* message = pick(input);
  if (message == nullptr || !message->slot) return;
  const Message held = *message;
  forward(input, *honest_, held, *held.slot);
}

inline void World::forward_by_broken(Input& input) {
  const std::uint32_t at = input.below(8) == 0 ? input.number<std::uint32_t>() : slot(input);
  const Message* message = pick(input);
  if (message == nullptr) return;
  const Message asked = *message;
  forward(input, *broken_, asked, at);
}

inline void World::take_back_by_broken(Input& input) {
  const Message* message = pick(input);
  if (message == nullptr) return;
  const auto word = [&] {
    return honest_->ledger().export_word(message->ticket.export_index)->load();
  };
  const std::uint64_t before = word();
  producer_->take_back(broken_->lease(), message->ticket.export_index, message->ticket.generation);
  require(message->sent_by == SentBy::kBroken || word() == before,
          "only who has sent a message on takes it back");
}

// As who opens what was sent on asks for them.
inline void World::ask_for_timelines() {
  for (const PlayedConsumer* each : {honest_.get(), broken_.get()}) {
    try {
      const ForwarderFiles files = producer_->forwarder_files(each->lease());
      require(files.pidfd.valid() && files.life_line.valid(),
              "whose timelines are given, its end can be seen");
    } catch (const Error& refused) {
      require(refused.code() == ErrorCode::kGone, "only what is over is not given");
    }
  }
}

// The owner opens a message itself.
inline void World::open_own(Input& input) {
  const Message* message = pick(input);
  if (message == nullptr) return;
  try {
    const OwnOpen own =
        producer_->open_own(message->ticket.export_index, message->ticket.generation);
    for (const ForwardersNumber& number : own.behind) {
      require(number.signs != nullptr, "whose number is waited for, its end can be seen");
    }
    allocator().unpin(own.block.block);
  } catch (const Error& refused) {
    require(refused.code() == ErrorCode::kGone || refused.code() == ErrorCode::kWithdrawn ||
                refused.code() == ErrorCode::kExpired,
            "what cannot be opened is refused in one of the ways that are documented");
  }
}

inline void World::sends_on(Input& input) {
  switch (input.below(6)) {
    case 0:
      return forward_by_honest(input);
    case 1:
      return take_back_by_broken(input);
    case 2:
      return ask_for_timelines();
    case 3:
      return open_own(input);
    default:
      return forward_by_broken(input);
  }
}

}  // namespace limbo::fuzz::claim_rows
