#include "ipc/send_on.h"

#include <string>

#include "allocator/capture_gate.h"
#include "allocator/error.h"
#include "ipc/descriptor.h"
#include "ipc/fail_points.h"
#include "ipc/incarnation.h"
#include "ipc/ledger_options.h"
#include "ipc/producer_link.h"

namespace limbo {
namespace {

void check_stream(Device& device, StreamRef stream) {
  if (!device.is_capturing(stream)) return;
  throw Error(ErrorCode::kNotAvailableYet,
              "Sending while a stream of the sender is being captured into a graph is not "
              "available yet.",
              "Send before the capture begins or after it has ended.");
}

void check_streams(Device& device, const Holding& held, StreamRef current) {
  check_stream(device, held.received_on);
  if (device.stream_id(held.received_on) != held.stream_id) {
    throw Error(ErrorCode::kNotLendable,
                "The stream that received this memory is gone, so nothing can be ordered behind "
                "its work.",
                "Send a clone() of it.");
  }
  if (current != held.received_on) check_stream(device, current);
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
  // Its own writes, and those that the block had before it came: the stream that received it has
  // waited for them. Enqueued before anything that names them leaves this process.
  {
    const StreamQuestion question(device, StreamQuestion::Patient{});
    check_streams(device, held, options.current_stream);
    request.points[0] = link.advance(options.current_stream);
    if (options.current_stream != held.received_on) {
      request.points[1] = link.advance(held.received_on);
    }
  }
  LIMBO_FAIL_POINT("sendon.after_enqueue");

  descriptor.boot = boot_id();
  descriptor.producer = link.address().incarnation;
  descriptor.directory = link.address().directory;
  descriptor.socket_name = link.address().socket_name;
  descriptor.ticket = link.forward(request, held.ticket);
}

}  // namespace limbo
