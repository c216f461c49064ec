// Sharing tensors: the C++ face of what torch.ops.limbo.* offers.
//
// A message is bytes that may travel by any road. What is lent is the tensor's whole storage, so
// that tensors that share a storage here share one there. Thread-safe. Errors are limbo::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "hooks/tensor_bytes.h"
#include "ipc/sharing.h"

namespace limbo {

struct ShareTensorOptions {
  int consumers = 1;                                      // processes that are promised the memory
  std::optional<std::chrono::milliseconds> time_limit{};  // default: option message_time_limit_ms
  std::uint8_t kind = 0;                                  // a number of the caller's
  TensorForm form = TensorForm::kTensor;
};

// Work that the current stream has queued comes before the receiver's. Never waits, but for received
// memory, whose owner is asked: at most a second. Errors: kNotLendable (which tensor, why, what to
// do), kBadArgument, kNotAvailableYet (the current stream is being captured), kLedgerFull, kNoChannel,
// kDeviceError; of received memory kGone, kWithdrawn, kExpired, kProducerExited too.
[[nodiscard]] Bytes share_tensor(const at::Tensor& tensor, const ShareTensorOptions& options = {});

// Opens a message. `device`: the index to open on; default: the owner's GPU. The current stream
// waits for the sender's work; the host does not. Errors: as Sharing::receive.
[[nodiscard]] at::Tensor receive_tensor(ByteSpan message, std::optional<int> device = {});

// The same, as a uint8 tensor over the whole storage, whatever the message says about its tensor.
[[nodiscard]] at::Tensor receive_storage(ByteSpan message, std::optional<int> device = {});

// What a message says about its tensor, checked, without claiming anything.
[[nodiscard]] TensorLayout message_layout(ByteSpan message);

// Takes a message of this process back.
void withdraw_message(ByteSpan message);

// Lets every process of this user acquire the tensor under `name`, until it is unpublished or this
// process ends. Keep the tensor until then: once its memory is freed, nobody can acquire it. The work
// that the current stream of now has queued when somebody acquires comes before the acquirer's.
// Errors: as share_tensor, and as Sharing::publish; received memory is kNotLendable, its owner has to
// publish it.
void publish_tensor(const std::string& name, const at::Tensor& tensor,
                    const ShareTensorOptions& options = {});

// Whether share_tensor can lend it. Throws nothing and makes nothing.
[[nodiscard]] bool is_lendable(const at::Tensor& tensor) noexcept;

// Whether its storage came through receive_tensor or receive_storage.
[[nodiscard]] bool is_received(const at::Tensor& tensor) noexcept;

// ReceivedBlock::orphaned, by any of the messages that brought its storage here; false of memory that
// was not received. Throws kForkedChild of received memory in a child that was forked meanwhile.
[[nodiscard]] bool is_orphaned(const at::Tensor& tensor);

}  // namespace limbo
