#include "ipc/channel_requests.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/packet.h"

namespace limbo {
namespace {

ForwardRequest request_of(const Forward& message) {
  constexpr std::uint64_t kLongest = std::numeric_limits<std::int64_t>::max() / 2;
  ForwardRequest request;
  request.slot = message.slot;
  request.held = {message.export_index, message.generation};
  request.offset_bytes = message.offset_bytes;
  request.size_bytes = message.size_bytes;
  request.consumers = message.consumers;
  request.time_limit = std::chrono::milliseconds(std::min(message.time_limit_ms, kLongest));
  for (std::size_t i = 0; i < 2; ++i) {
    request.points[i] = {0, message.timeline[i], message.number[i]};
  }
  request.also_behind = message.also_behind;
  request.also_lost = message.also_lost;
  return request;
}

void refuse(const Asker& asker, std::uint64_t request, ErrorCode code, const char* why) {
  (void)send_packet(asker.socket, encode(AskedInVain{request, code, why}));
}

// False: the asker does not hear of it.
bool tell(const Asker& asker, std::uint64_t request, const protocol::ClaimTarget& made) {
  const Forwarded answer{request, made.export_index, made.generation};
  return !is_readable(asker.watch.pidfd()) && send_packet(asker.socket, encode(answer));
}

}  // namespace

void answer_forward(LeaseKeeper& keeper, ServiceThread& worker, const Asker& asker,
                    const Forward& message, const Backlog::Turn& turn) noexcept {
  // Its last words: nobody hears the answer, though a fork child may keep the connection open.
  if (is_readable(asker.watch.pidfd())) return;
  std::optional<protocol::ClaimTarget> made;
  try {
    try {
      made = keeper.forward(asker.lease, request_of(message), asker.watch.pidfd(),
                            asker.watch.life_line(), asker.watch.life_line_flags());
      LIMBO_FAIL_POINT("forward.before_answer");
      if (tell(asker, message.request, *made)) return;
    } catch (const Error& failure) {
      refuse(asker, message.request, failure.code(), failure.what());
    } catch (const std::exception&) {
      refuse(asker, message.request, ErrorCode::kNoChannel, "Its owner's host memory is used up.");
    }
    if (!made) return;
    worker.post([&keeper, lease = asker.lease, made = *made, turn] {
      static_cast<void>(turn);
      keeper.take_back(lease, made.export_index, made.generation);
    });
  } catch (const std::exception&) {
    // No memory for this either: the asker hears nothing, and what was made ends with its connection.
  }
}

void answer_timeline(LeaseKeeper& keeper, const Asker& asker, const AskTimelines& message) {
  try {
    const ForwarderFiles files = keeper.forwarder_files(message.lease_number);
    const int descriptors[GivenTimelines::kDescriptors] = {files.timelines->fd(), files.pidfd.get(),
                                                           files.life_line.get()};
    LIMBO_FAIL_POINT("timeline.before_answer");
    (void)send_packet(asker.socket, encode(GivenTimelines{message.request, files.life_line_flags}),
                      descriptors);
  } catch (const Error& failure) {
    refuse(asker, message.request, failure.code(), failure.what());
  }
}

}  // namespace limbo
