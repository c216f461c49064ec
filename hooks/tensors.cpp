#include "hooks/tensors.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <string>
#include <utility>

#include "allocator/device/device.h"
#include "allocator/error.h"
#include "hooks/current_stream.h"
#include "hooks/process.h"
#include "hooks/received_storage.h"

namespace limbo {
namespace {

// A tensor in an error text: "a float tensor of 12 bytes on cuda:0".
std::string tensor_text(const at::Tensor& tensor) {
  std::string text = "a tensor of type " + std::string(c10::toString(tensor.scalar_type()));
  if (tensor.has_storage()) text += ", " + std::to_string(tensor.storage().nbytes()) + " bytes,";
  return text + " on " + tensor.device().str();
}

[[noreturn]] void throw_not_lendable(const at::Tensor& tensor, const std::string& why,
                                     const std::string& advice) {
  throw Error(ErrorCode::kNotLendable, "Cannot share " + tensor_text(tensor) + ": " + why + ".",
              advice);
}

c10::StorageImpl& storage_of_tensor(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Of a kind whose memory is one storage.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_nested() && !tensor.is_quantized() &&
         tensor.has_storage() && tensor.unsafeGetTensorImpl()->unsafe_storage();
}

bool is_cut_from_autograd(const at::Tensor& tensor) {
  return !tensor.requires_grad() || tensor.is_leaf();
}

void require_plain(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw Error(ErrorCode::kNotLendable, "Cannot share an undefined tensor.");
  }
  if (!tensor.is_cuda()) {
    throw_not_lendable(tensor, "it is not on a GPU",
                       "Move it with .cuda(), or send it by torch.multiprocessing.");
  }
  if (!is_plain(tensor)) {
    throw_not_lendable(tensor, "it is sparse, nested or quantized",
                       "Share the plain tensors that it consists of.");
  }
  if (!is_cut_from_autograd(tensor)) {
    throw_not_lendable(tensor,
                       "it requires grad and is not a leaf, and autograd does not cross "
                       "processes",
                       "Share tensor.detach().");
  }
}

// The block that holds the whole storage of a CUDA tensor, if there is one.
std::optional<BlockView> block_of(const at::Tensor& tensor) {
  if (!in_use()) return std::nullopt;
  const void* data = storage_of_tensor(tensor).data();
  std::optional<BlockView> block = allocator_in_use().find(data);
  if (!block) return std::nullopt;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) -
                                               static_cast<const std::byte*>(block->data));
  if (storage_of_tensor(tensor).nbytes() > block->size_bytes - offset) return std::nullopt;
  return block;
}

const c10::DataPtr* data_pointer(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  // Without torch's checks: asking about a fake tensor is no error.
  return &tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
}

// Of memory that can be shared: the device on which its work is ordered. Received memory is sent on.
int require_lendable(const at::Tensor& tensor) {
  if (const std::optional<BlockView> block = block_of(tensor)) return block->stream.device;
  const c10::DataPtr* data = data_pointer(tensor);
  if (const ReceivedBlock* received = data == nullptr ? nullptr : received_block(*data)) {
    return received->device();
  }
  throw_not_lendable(tensor,
                     "its memory is not one that Limbo allocated (torch's CUDA allocator here is "
                     "\"" +
                         c10::cuda::CUDACachingAllocator::get()->name() + "\")",
                     "Enable Limbo before CUDA memory is used, or share tensor.clone() once it is "
                     "enabled.");
}

TensorLayout layout_of(const at::Tensor& tensor, const ShareTensorOptions& options) {
  TensorLayout layout;
  layout.form = options.form;
  layout.kind = options.kind;
  if (options.form == TensorForm::kStorage) return layout;
  layout.dtype = tensor.scalar_type();
  layout.requires_grad = tensor.requires_grad();
  layout.conjugate = tensor.is_conj();
  layout.negative = tensor.is_neg();
  layout.storage_offset = tensor.storage_offset();
  layout.sizes = tensor.sizes().vec();
  layout.strides = tensor.strides().vec();
  return layout;
}

// torch's CUDA state, which the first CUDA tensor of a process needs. The simulated device has its
// own (sim_tensors.h).
void prepare_torch() {
  if (!simulated()) at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
}

at::Tensor make_tensor(c10::Storage storage, const TensorLayout& layout) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(layout.dtype));
  tensor.unsafeGetTensorImpl()->set_storage_offset(layout.storage_offset);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides);
  if (layout.conjugate) tensor._set_conj(true);
  if (layout.negative) tensor._set_neg(true);
  if (layout.requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

TensorLayout whole_storage(std::size_t size_bytes) {
  TensorLayout layout;
  layout.form = TensorForm::kTensor;
  layout.sizes = {static_cast<std::int64_t>(size_bytes)};
  layout.strides = {1};
  return layout;
}

// Checked as a device is that memory is opened on.
void check_device(int device) {
  (void)sharing_in_use();  // not in a forked child
  const int count = process_device().device_count();
  if (device >= 0 && device < count) return;
  throw Error(ErrorCode::kBadArgument, "device is " + std::to_string(device) + ".",
              "This process has devices 0 to " + std::to_string(count - 1) + ".");
}

c10::Storage empty_storage(std::optional<int> device) {
  if (device) check_device(*device);
  const auto index = static_cast<c10::DeviceIndex>(device.value_or(current_device()));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(0),
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CUDA, index)), /*allocator=*/nullptr,
      /*resizable=*/false));
}

struct Opened {
  c10::Storage storage;
  TensorLayout layout;
};

Opened open_message(ByteSpan message, std::optional<int> device) {
  if (is_empty_message(message)) {
    TensorLayout layout = decode_empty_message(message);
    prepare_torch();
    return {empty_storage(device), std::move(layout)};
  }
  TensorLayout layout;
  ReceiveOptions options;
  options.device = device;
  options.current_stream = [](int index) { return current_stream(index).handle; };
  options.check_extra = [&layout](const Bytes& extra) {
    layout = decode_layout(extra);
    prepare_torch();
  };
  Received received = sharing_in_use().receive(message, options);
  // The claim ends with `received` when this throws.
  if (reach_bytes(layout) > received.block->size_bytes()) {
    throw Error(ErrorCode::kBadDescriptor, "The message's tensor needs " +
                                               std::to_string(reach_bytes(layout)) +
                                               " bytes, and its memory has " +
                                               std::to_string(received.block->size_bytes()) + ".");
  }
  const StreamRef stream = current_stream(received.block->device());
  return {c10::Storage(storage_of(std::move(received.block), stream)), std::move(layout)};
}

}  // namespace

Bytes share_tensor(const at::Tensor& tensor, const ShareTensorOptions& options) {
  require_plain(tensor);
  const TensorLayout layout = layout_of(tensor, options);
  if (tensor.storage().nbytes() == 0) return encode_empty_message(layout);
  const int device = require_lendable(tensor);
  ShareOptions share_options;
  share_options.consumers = options.consumers;
  share_options.time_limit = options.time_limit;
  share_options.current_stream = current_stream(device);
  return sharing_in_use().share(tensor.storage().data(), tensor.storage().nbytes(), share_options,
                                encode_layout(layout));
}

void publish_tensor(const std::string& name, const at::Tensor& tensor,
                    const ShareTensorOptions& options) {
  require_plain(tensor);
  const TensorLayout layout = layout_of(tensor, options);
  if (tensor.storage().nbytes() == 0) {
    throw_not_lendable(tensor, "it has no memory that could be found under a name",
                       "Publish a tensor with elements.");
  }
  const std::optional<BlockView> block = block_of(tensor);
  if (!block && is_received(tensor)) {
    throw_not_lendable(tensor, "it was received, and only its owner can publish it",
                       "Publish it there, or publish clone() of it.");
  }
  ShareOptions share_options;
  share_options.consumers = options.consumers;
  share_options.time_limit = options.time_limit;
  share_options.current_stream = current_stream(require_lendable(tensor));
  sharing_in_use().publish(name, tensor.storage().data(), tensor.storage().nbytes(), share_options,
                           encode_layout(layout));
}

at::Tensor receive_tensor(ByteSpan message, std::optional<int> device) {
  Opened opened = open_message(message, device);
  if (opened.layout.form == TensorForm::kStorage) {
    opened.layout = whole_storage(opened.storage.nbytes());
  }
  return make_tensor(std::move(opened.storage), opened.layout);
}

at::Tensor receive_storage(ByteSpan message, std::optional<int> device) {
  Opened opened = open_message(message, device);
  const TensorLayout layout = whole_storage(opened.storage.nbytes());
  return make_tensor(std::move(opened.storage), layout);
}

TensorLayout message_layout(ByteSpan message) {
  if (is_empty_message(message)) return decode_empty_message(message);
  return decode_layout(sharing_in_use().peek_extra(message));
}

void withdraw_message(ByteSpan message) {
  if (is_empty_message(message)) return;  // nothing was lent
  sharing_in_use().withdraw(message);
}

bool is_lendable(const at::Tensor& tensor) noexcept {
  try {
    if (!tensor.defined() || !tensor.is_cuda() || !is_plain(tensor) ||
        !is_cut_from_autograd(tensor) || storage_of_tensor(tensor).nbytes() == 0) {
      return false;
    }
    const std::optional<BlockView> block = block_of(tensor);
    return block ? block->pool.is_default() : is_received(tensor);
  } catch (...) {
    return false;  // a fake tensor's storage, a forked child
  }
}

bool is_received(const at::Tensor& tensor) noexcept {
  const c10::DataPtr* data = data_pointer(tensor);
  return data != nullptr && received_block(*data) != nullptr;
}

bool is_orphaned(const at::Tensor& tensor) {
  const c10::DataPtr* data = data_pointer(tensor);
  const ReceivedBlock* block = data == nullptr ? nullptr : received_block(*data);
  return block != nullptr && block->orphaned();
}

}  // namespace limbo
