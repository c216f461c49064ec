#include "hooks/sim_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <bit>
#include <cstring>
#include <optional>
#include <string>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/current_stream.h"
#include "hooks/error_text.h"
#include "hooks/operator_schema.h"
#include "hooks/process.h"
#include "hooks/sim_history.h"

namespace limbo {
namespace {

Device& simulated_device_in_use() {
  if (!simulated()) {
    throw Error(ErrorCode::kBadArgument,
                "The sim_* operators work on the simulated device only, and this process is not on "
                "it.",
                "Set LIMBO_DEVICE=simulated before Limbo is loaded.");
  }
  return allocator_in_use().device();
}

int checked_device(std::int64_t device) {
  const int count = simulated_device_in_use().device_count();
  if (device < 0 || device >= count) {
    throw Error(ErrorCode::kBadArgument, "There is no simulated GPU " + std::to_string(device) +
                                             "; there are " + std::to_string(count) + ".");
  }
  return static_cast<int>(device);
}

void require_simulated(const at::Tensor& tensor) {
  (void)simulated_device_in_use();
  if (tensor.is_cuda() && tensor.has_storage()) return;
  throw Error(ErrorCode::kBadArgument,
              "A tensor of the simulated GPU was expected, as sim_empty "
              "makes it; this one is on " +
                  tensor.device().str() + ".");
}

StreamRef stream_of(const at::Tensor& tensor) {
  return current_stream(tensor.device().index());
}

// The whole storage on the host; behind what the current stream has queued.
at::Tensor read_storage(const at::Tensor& tensor) {
  const std::size_t size_bytes = tensor.storage().nbytes();
  auto bytes = at::empty({static_cast<std::int64_t>(size_bytes)}, c10::kByte);
  if (size_bytes != 0) {
    simulated_device_in_use().copy_to_host(stream_of(tensor), bytes.mutable_data_ptr(),
                                           tensor.storage().data(), size_bytes);
  }
  return bytes;
}

// `bytes` seen as `tensor` sees its storage.
at::Tensor viewed_as(const at::Tensor& bytes, const at::Tensor& tensor) {
  auto view = at::empty({0}, at::TensorOptions(c10::kCPU).dtype(tensor.dtype()));
  view.set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  return view;
}

at::Tensor sim_read(const at::Tensor& tensor) {
  require_simulated(tensor);
  return viewed_as(read_storage(tensor), tensor).clone(at::MemoryFormat::Contiguous);
}

void sim_write(const at::Tensor& tensor, const at::Tensor& values) {
  require_simulated(tensor);
  if (!values.is_cpu() || values.sizes() != tensor.sizes() ||
      values.scalar_type() != tensor.scalar_type()) {
    throw Error(ErrorCode::kBadArgument,
                "sim_write takes a CPU tensor of the same sizes and dtype.");
  }
  if (tensor.numel() == 0) return;
  const at::Tensor source = values.contiguous();
  Device& device = simulated_device_in_use();
  if (tensor.is_contiguous()) {
    device.copy_from_host(stream_of(tensor), tensor.mutable_data_ptr(), source.const_data_ptr(),
                          tensor.nbytes());
    return;
  }
  // Elements that the view leaves out are written back as they are.
  const at::Tensor bytes = read_storage(tensor);
  viewed_as(bytes, tensor).copy_(source);
  device.copy_from_host(stream_of(tensor), tensor.storage().mutable_data(), bytes.const_data_ptr(),
                        tensor.storage().nbytes());
}

// The 32-bit word that fills memory with `value`, if there is one.
std::optional<std::uint32_t> fill_word(const at::Tensor& tensor, const at::Scalar& value) {
  if (!tensor.is_contiguous() || tensor.nbytes() % 4 != 0) return std::nullopt;
  const std::size_t element_bytes = tensor.itemsize();
  if (element_bytes > 4) return std::nullopt;
  const std::int64_t count = 4 / static_cast<std::int64_t>(element_bytes);
  const at::Tensor pattern =
      at::full({count}, value, at::TensorOptions(c10::kCPU).dtype(tensor.dtype()));
  std::uint32_t word = 0;
  std::memcpy(&word, pattern.const_data_ptr(), sizeof(word));
  return word;
}

void sim_fill(const at::Tensor& tensor, const at::Scalar& value) {
  require_simulated(tensor);
  if (tensor.numel() == 0) return;
  if (const auto word = fill_word(tensor, value)) {
    simulated_device_in_use().fill(stream_of(tensor), tensor.mutable_data_ptr(), *word,
                                   tensor.nbytes() / 4);
    return;
  }
  sim_write(tensor,
            at::full(tensor.sizes(), value, at::TensorOptions(c10::kCPU).dtype(tensor.dtype())));
}

at::Tensor sim_empty(at::IntArrayRef sizes, c10::ScalarType dtype, std::int64_t device_index) {
  const int device = checked_device(device_index);
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) {
      throw Error(ErrorCode::kBadArgument, "sim_empty was given a size that cannot be.");
    }
  }
  const std::size_t size_bytes = static_cast<std::size_t>(count) * c10::elementSize(dtype);
  void* data = adapter().take(size_bytes, current_stream(device));
  // Not resizable: growing would take torch's CUDA kernels.
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<std::int64_t>(size_bytes)),
      c10::DataPtr(data, data, adapter().raw_deleter(),
                   c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device))),
      /*allocator=*/&adapter(), /*resizable=*/false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.contiguous() : sim_read(tensor);
}

bool sim_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor left = on_host(a);
  const at::Tensor right = on_host(b);
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

std::int64_t sim_new_stream(std::int64_t device) {
  const int index = checked_device(device);
  return std::bit_cast<std::int64_t>(simulated_device_in_use().create_stream(index));
}

std::int64_t sim_set_stream(std::int64_t stream, std::int64_t device) {
  const int index = checked_device(device);
  return std::bit_cast<std::int64_t>(
      set_simulated_stream({index, std::bit_cast<StreamHandle>(stream)}));
}

std::int64_t sim_current_stream(std::int64_t device) {
  return std::bit_cast<std::int64_t>(simulated_stream(checked_device(device)));
}

void sim_synchronize(std::int64_t device) {
  const int index = checked_device(device);
  simulated_device_in_use().synchronize_device(index);
}

// Wraps a function so that its errors leave as torch's.
template <auto kFunction>
struct ForTorch;
template <typename Result, typename... Arguments, Result (*kFunction)(Arguments...)>
struct ForTorch<kFunction> {
  static Result call(Arguments... arguments) {
    return for_torch([&]() -> Result { return kFunction(arguments...); });
  }
};

}  // namespace

void register_simulated_operators(torch::Library& library) {
  library.def(schema_of("sim_empty"), &ForTorch<&sim_empty>::call);
  library.def(schema_of("sim_fill"), &ForTorch<&sim_fill>::call);
  library.def(schema_of("sim_read"), &ForTorch<&sim_read>::call);
  library.def(schema_of("sim_write"), &ForTorch<&sim_write>::call);
  library.def(schema_of("sim_equal"), &ForTorch<&sim_equal>::call);
  library.def(schema_of("sim_new_stream"), &ForTorch<&sim_new_stream>::call);
  library.def(schema_of("sim_set_stream"), &ForTorch<&sim_set_stream>::call);
  library.def(schema_of("sim_current_stream"), &ForTorch<&sim_current_stream>::call);
  library.def(schema_of("sim_synchronize"), &ForTorch<&sim_synchronize>::call);
  library.def(schema_of("sim_record_history"), &ForTorch<&sim_record_history>::call);
}

}  // namespace limbo
