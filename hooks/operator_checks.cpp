#include "hooks/operator_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/record_stream_cuda_dispatch.h>
#include <ATen/ops/resize_cuda_dispatch.h>
#include <ATen/ops/set_cuda_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/current_stream.h"
#include "hooks/error_text.h"

namespace limbo {
namespace {

constexpr std::uint64_t kTooMany = std::numeric_limits<std::uint64_t>::max();

// a * b + c, or kTooMany.
std::uint64_t multiply_add(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || __builtin_add_overflow(result, c, &result)) {
    return kTooMany;
  }
  return result;
}

// torch takes such a stride for "choose one", and finds the tensor too large once it is changed. Along
// a single element no stride counts.
void refuse_negative_strides(at::IntArrayRef sizes, at::IntArrayRef strides) {
  for (std::size_t i = 0; i < sizes.size() && i < strides.size(); ++i) {
    if (strides[i] >= 0 || sizes[i] <= 1) continue;
    throw Error(ErrorCode::kBadArgument,
                "A tensor cannot have the stride " + std::to_string(strides[i]) + ".");
  }
}

void refuse_negative_sizes(at::IntArrayRef sizes) {
  for (const std::int64_t size : sizes) {
    if (size >= 0) continue;
    throw Error(ErrorCode::kBadArgument,
                "A tensor cannot have the size " + std::to_string(size) + ".");
  }
}

// The elements from the storage's start to the last one of a tensor; 0 when it has none, kTooMany
// when there are more than can be counted. Without strides it is contiguous.
std::uint64_t reach_elements(std::int64_t offset, at::IntArrayRef sizes,
                             std::optional<at::IntArrayRef> strides) {
  for (const std::int64_t size : sizes) {
    if (size == 0) return 0;
  }
  const auto start = static_cast<std::uint64_t>(offset);
  if (!strides) {
    std::uint64_t count = 1;
    for (const std::int64_t size : sizes) {
      count = multiply_add(count, static_cast<std::uint64_t>(size), 0);
      if (count == kTooMany) return kTooMany;
    }
    return multiply_add(count, 1, start);
  }
  std::uint64_t reach = start + 1;
  for (std::size_t i = 0; i < sizes.size() && i < strides->size(); ++i) {
    reach = multiply_add(static_cast<std::uint64_t>(sizes[i] - 1),
                         static_cast<std::uint64_t>((*strides)[i]), reach);
    if (reach == kTooMany) return kTooMany;
  }
  return reach;
}

void require_fit(c10::StorageImpl& storage, std::uint64_t elements, std::size_t element_bytes,
                 const char* what) {
  const std::uint64_t needed = multiply_add(elements, element_bytes, 0);
  if (needed <= storage.nbytes()) return;
  const std::string need =
      needed == kTooMany ? "more bytes than can be counted" : std::to_string(needed) + " bytes";
  throw Error(ErrorCode::kNotResizable,
              std::string("Trying to resize storage that is not resizable: ") + what +
                  " would need " + need + ", and the tensor's storage" +
                  (storage.received_cuda() ? ", which was received from another process," : "") +
                  " has " + std::to_string(storage.nbytes()) + " and cannot grow.",
              "Nothing was changed. Use clone() of the tensor, which is this process's own.");
}

// Null for tensors that have none (sparse ones, for instance).
c10::StorageImpl* storage_if_any(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

const at::Tensor& checked_resize(const at::Tensor& self, at::IntArrayRef size,
                                 std::optional<at::MemoryFormat> memory_format) {
  c10::StorageImpl* storage = storage_if_any(self);
  if (storage != nullptr && !storage->resizable()) {
    for_torch([&] {
      refuse_negative_sizes(size);
      // Nothing is going to change. (With a format the tensor is laid out anew all the same, and an
      // expanded one then reaches further.)
      if (self.sizes() == size && !memory_format) return;
      require_fit(*storage, reach_elements(self.storage_offset(), size, std::nullopt),
                  self.itemsize(), "the new size");
    });
  }
  return at::cuda::resize_(self, size, memory_format);
}

at::Tensor& checked_set(at::Tensor& self, at::Storage source, std::int64_t storage_offset,
                        at::IntArrayRef size, at::IntArrayRef stride) {
  c10::StorageImpl* storage = source.unsafeGetStorageImpl();
  // A negative offset is refused by torch before anything changes.
  if (storage != nullptr && !storage->resizable() && storage_offset >= 0) {
    for_torch([&] {
      refuse_negative_sizes(size);
      refuse_negative_strides(size, stride);
      const auto strides =
          stride.data() == nullptr ? std::nullopt : std::optional<at::IntArrayRef>(stride);
      require_fit(*storage, reach_elements(storage_offset, size, strides), self.itemsize(),
                  "the tensor");
    });
  }
  return at::cuda::set_(self, std::move(source), storage_offset, size, stride);
}

void checked_record_stream(at::Tensor& self, at::Stream stream) {
  if (const c10::StorageImpl* storage = storage_if_any(self)) {
    if (Adapter::record_use(storage->data_ptr(), to_stream_ref(stream))) return;
  }
  at::cuda::record_stream(self, stream);
}

// Takes the place of torch's warning handler while kernels are replaced.
class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

void register_operator_checks() {
  static bool registered = false;  // called while the library is loaded only
  if (registered) return;
  registered = true;
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  // torch warns about the first replaced kernel of a process only; with "always" on, this is not
  // the one that counts.
  const bool always = c10::WarningUtils::get_warnAlways();
  c10::WarningUtils::set_warnAlways(true);
  auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library->impl("resize_", &checked_resize);
  library->impl("set_.source_Storage_storage_offset", &checked_set);
  library->impl("record_stream", &checked_record_stream);
  c10::WarningUtils::set_warnAlways(always);
}

}  // namespace limbo
