#include "hooks/operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/error.h"
#include "hooks/error_text.h"
#include "hooks/numbers_json.h"
#include "hooks/operator_schema.h"
#include "hooks/process.h"
#include "hooks/sim_tensors.h"
#include "hooks/tensors.h"

namespace limbo {
namespace {

// Without the dispatcher: a mode of the program would put a tensor of its own there, one without
// memory perhaps (FakeTensorMode).
at::Tensor to_tensor(const Bytes& bytes) {
  const at::Tensor tensor =
      at::detail::empty_cpu({static_cast<std::int64_t>(bytes.size())}, c10::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// Such a tensor of a mode's or of a transform's has a size and no memory.
bool has_memory(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  return tensor.numel() == 0 ||
         tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

ByteSpan to_span(const at::Tensor& bytes) {
  if (!bytes.defined() || !bytes.is_cpu() || bytes.scalar_type() != c10::kByte ||
      bytes.dim() != 1 || !bytes.is_contiguous() || !has_memory(bytes)) {
    throw Error(ErrorCode::kBadArgument,
                "A message is a contiguous one-dimensional uint8 tensor on "
                "the CPU, as share returns it.");
  }
  return {static_cast<const std::byte*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

int to_int(std::int64_t value, std::int64_t least, std::int64_t most, const char* name) {
  if (value < least || value > most) {
    throw Error(ErrorCode::kBadArgument, std::string(name) + " is " + std::to_string(value) +
                                             "; it goes from " + std::to_string(least) + " to " +
                                             std::to_string(most) + ".");
  }
  return static_cast<int>(value);
}

int to_consumers(std::int64_t consumers) {
  return to_int(consumers, 1, kMostConsumers, "consumers");
}

std::optional<int> to_device(std::int64_t device) {
  if (device == -1) return std::nullopt;
  return to_int(device, -1, std::numeric_limits<c10::DeviceIndex>::max(), "device");
}

std::optional<std::chrono::milliseconds> to_time_limit(std::optional<double> ttl_s) {
  if (!ttl_s) return std::nullopt;
  constexpr double kMostSeconds = 366.0 * 86400.0;
  if (!(*ttl_s > 0 && *ttl_s <= kMostSeconds)) {
    throw Error(ErrorCode::kBadArgument,
                "ttl is " + std::to_string(*ttl_s) + " s; it goes from above 0 to 366 days.");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(*ttl_s * 1000.0)));
}

at::Tensor share_op(const at::Tensor& tensor, std::int64_t consumers, std::optional<double> ttl_s,
                    std::int64_t kind) {
  return for_torch([&] {
    ShareTensorOptions options;
    options.consumers = to_consumers(consumers);
    options.time_limit = to_time_limit(ttl_s);
    options.kind = static_cast<std::uint8_t>(to_int(kind, 0, 255, "kind"));
    return to_tensor(share_tensor(tensor, options));
  });
}

at::Tensor share_storage_op(const at::Tensor& tensor, std::int64_t consumers,
                            std::optional<double> ttl_s) {
  return for_torch([&] {
    ShareTensorOptions options;
    options.consumers = to_consumers(consumers);
    options.time_limit = to_time_limit(ttl_s);
    options.form = TensorForm::kStorage;
    return to_tensor(share_tensor(tensor, options));
  });
}

at::Tensor receive_op(const at::Tensor& bytes, std::int64_t device) {
  return for_torch([&] { return receive_tensor(to_span(bytes), to_device(device)); });
}

at::Tensor receive_storage_op(const at::Tensor& bytes, std::int64_t device) {
  return for_torch([&] { return receive_storage(to_span(bytes), to_device(device)); });
}

std::int64_t kind_op(const at::Tensor& bytes) {
  return for_torch([&]() -> std::int64_t {
    const TensorLayout layout = message_layout(to_span(bytes));
    return layout.form == TensorForm::kStorage ? -1 : layout.kind;
  });
}

void withdraw_op(const at::Tensor& bytes) {
  for_torch([&] { withdraw_message(to_span(bytes)); });
}

bool collect_op() {
  return for_torch([] { return in_use() && sharing_in_use().collect(); });
}

// torch infers schemas from functions that are not noexcept.
bool is_limbo_op(const at::Tensor& tensor) {
  return is_lendable(tensor);
}

bool is_received_op(const at::Tensor& tensor) {
  return is_received(tensor);
}

bool is_orphaned_op(const at::Tensor& tensor) {
  return for_torch([&] { return is_orphaned(tensor); });
}

std::string holders_op() {
  return for_torch([] { return holders_json(); });
}

std::string stats_op() {
  return for_torch(stats_json);
}

void publish_op(const at::Tensor& tensor, const std::string& name, std::optional<double> ttl_s,
                std::int64_t kind) {
  for_torch([&] {
    ShareTensorOptions options;
    options.time_limit = to_time_limit(ttl_s);
    options.kind = static_cast<std::uint8_t>(to_int(kind, 0, 255, "kind"));
    publish_tensor(name, tensor, options);
  });
}

bool unpublish_op(const std::string& name) {
  return for_torch([&] { return sharing_in_use().unpublish(name); });
}

at::Tensor acquire_op(const std::string& name) {
  return for_torch([&] { return to_tensor(sharing_in_use().acquire(name)); });
}

std::string names_op() {
  return for_torch(names_json);
}

std::string processes_op() {
  return for_torch(processes_json);
}

LendingProcess process_of(const std::string& incarnation) {
  for (const LendingProcess& process : sharing_in_use().processes()) {
    if (incarnation_text(process.incarnation) == incarnation) return process;
  }
  throw Error(ErrorCode::kProducerExited,
              "No living process that lends has the incarnation \"" + incarnation + "\".",
              "processes() lists those that live.");
}

std::string holders_of_op(const std::string& incarnation) {
  return for_torch([&] { return holders_json(process_of(incarnation)); });
}

std::vector<std::int64_t> reap_in_op(const std::string& incarnation, bool force) {
  return for_torch([&]() -> std::vector<std::int64_t> {
    const Reaped reaped = sharing_in_use().reap_in(process_of(incarnation), force);
    return {static_cast<std::int64_t>(reaped.leases), static_cast<std::int64_t>(reaped.claims)};
  });
}

void register_names(torch::Library& library) {
  library.def(schema_of("publish"), &publish_op);
  library.def(schema_of("unpublish"), &unpublish_op);
  library.def(schema_of("acquire"), &acquire_op);
  library.def(schema_of("names"), &names_op);
  library.def(schema_of("processes"), &processes_op);
  library.def(schema_of("holders_of"), &holders_of_op);
  library.def(schema_of("reap_in"), &reap_in_op);
}

void register_sharing(torch::Library& library) {
  library.def(schema_of("share"), &share_op);
  library.def(schema_of("receive"), &receive_op);
  library.def(schema_of("share_storage"), &share_storage_op);
  library.def(schema_of("receive_storage"), &receive_storage_op);
  library.def(schema_of("kind"), &kind_op);
  library.def(schema_of("withdraw"), &withdraw_op);
  library.def(schema_of("collect"), &collect_op);
  library.def(schema_of("is_limbo"), &is_limbo_op);
  library.def(schema_of("is_received"), &is_received_op);
  library.def(schema_of("is_orphaned"), &is_orphaned_op);
  library.def(schema_of("holders"), &holders_op);
  library.def(schema_of("stats"), &stats_op);
}

// Inside of torch.func.grad and the like torch would hand the operators, for each tensor, one that
// stands for it and has no memory, whether the transformed function was given it or not. Past these
// layers they get the tensors that the caller has.
void pass_through_transforms(torch::Library& library) {
  for (const char* schema : kOperatorSchemas) {
    const std::string_view text = schema;
    const std::string name(text.substr(0, text.find('(')));
    for (const c10::DispatchKey layer : {c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                         c10::DispatchKey::FuncTorchDynamicLayerBackMode}) {
      library.impl(name.c_str(), torch::dispatch(layer, torch::CppFunction::makeFallthrough()));
    }
  }
}

}  // namespace

const char* schema_of(std::string_view name) {
  for (const char* schema : kOperatorSchemas) {
    const std::string_view text = schema;
    if (text.substr(0, text.find('(')) == name) return schema;
  }
  throw Error(ErrorCode::kInternal, "There is no operator \"" + std::string(name) + "\".");
}

bool register_operators() {
  static bool registered = false;  // called while the library is loaded only
  if (registered) return true;
  // Registering a namespace a second time would end the process.
  if (c10::Dispatcher::singleton().findSchema({"limbo::share", ""})) return false;
  // Never destroyed: operators stay as long as the library, which is never unloaded.
  auto* library =
      new torch::Library(torch::Library::DEF, "limbo", std::nullopt, __FILE__, __LINE__);
  register_sharing(*library);
  register_names(*library);
  register_simulated_operators(*library);
  pass_through_transforms(*library);
  registered = true;
  return true;
}

}  // namespace limbo
