#include "ipc/send_on.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "allocator/capture_gate.h"
#include "allocator/error.h"
#include "ipc/descriptor.h"
#include "ipc/fail_points.h"
#include "ipc/incarnation.h"
#include "ipc/ledger_options.h"
#include "ipc/numbers_behind.h"
#include "ipc/producer_link.h"
#include "ipc/sending_streams.h"

namespace limbo {
namespace {

void check_stream(Device& device, StreamRef stream) {
  if (!device.is_capturing(stream)) return;
  throw Error(ErrorCode::kNotAvailableYet,
              "Sending while a stream of the sender is being captured into a graph is not "
              "available yet.",
              "Send before the capture begins or after it has ended.");
}

void check_receiver(Device& device, const StreamUse& receiver) {
  check_stream(device, receiver.stream);
  if (device.stream_id(receiver.stream) == receiver.id) return;
  throw Error(ErrorCode::kNotLendable,
              "The stream that received this memory is gone, so nothing can be ordered behind "
              "its work.",
              "Send a clone() of it.");
}

// Those of this process's own writes, and those that the block had before it came, by whichever of its
// messages: who received it has waited for them. Checked.
SendingStreams streams_behind(Device& device, const Holding& held, StreamRef current) {
  SendingStreams streams;
  check_stream(device, current);
  streams.add(current);
  check_receiver(device, {held.received_on, held.stream_id});
  streams.add(held.received_on);
  for (const StreamUse& receiver : held.behind->also().streams) {
    check_receiver(device, receiver);
    streams.add(receiver.stream);
  }
  return streams;
}

}  // namespace

void send_on(Device& device, const Holding& held, const void* data, std::size_t size_bytes,
             const ShareOptions& options, Descriptor& descriptor) {
  check_share_options(data, size_bytes, options);
  ProducerLink& link = *held.link;

  ForwardRequest request;
  request.slot = held.claim.slot;
  request.held = held.claim.target;
  request.offset_bytes =
      held.ticket.offset_bytes +
      static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - held.data);
  request.size_bytes = size_bytes;
  request.consumers = static_cast<std::uint32_t>(options.consumers);
  request.time_limit = options.time_limit.value_or(default_message_time_limit());
  // Enqueued before anything that names them leaves this process.
  {
    const StreamQuestion question(device, StreamQuestion::Patient{});
    const SendingStreams streams = streams_behind(device, held, options.current_stream);
    const std::array<TimelinePoint, 2> numbers = link.advance(streams.all());
    std::copy(numbers.begin(), numbers.end(), std::begin(request.points));
  }
  LIMBO_FAIL_POINT("sendon.after_enqueue");

  descriptor.boot = boot_id();
  descriptor.producer = link.address().incarnation;
  descriptor.directory = link.address().directory;
  descriptor.socket_name = link.address().socket_name;
  descriptor.ticket = link.forward(request, held.ticket, *held.behind);
}

}  // namespace limbo
