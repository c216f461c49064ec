#include "hooks/preconditions.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <link.h>

#include <atomic>
#include <cstdlib>

#include "allocator/error.h"
#include "allocator/sizes.h"
#include "hooks/version.h"

namespace limbo {
namespace {

std::atomic<bool> second_copy{false};

// torch reads the first of these that is set.
std::string allocator_settings() {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const char* text = std::getenv(name)) return text;
  }
  return {};
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string size_text(std::int64_t size_bytes) {
  return sizes::size_text(static_cast<std::size_t>(size_bytes));
}

std::string usage_text(const c10::CachingDeviceAllocator::DeviceStats& stats, int device) {
  return size_text(stats.reserved_bytes[0].current) + " on device " + std::to_string(device) +
         " (" + size_text(stats.allocated_bytes[0].current) + " allocated, " +
         std::to_string(stats.allocation[0].allocated) + " allocations so far)";
}

}  // namespace

std::vector<std::string> loaded_paths(std::string_view name) {
  struct Search {
    std::string start;
    std::vector<std::string> found;
  } search{std::string(name) + ".so", {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& where = *static_cast<Search*>(data);
        const std::string_view path = info->dlpi_name;
        const std::string_view file = path.substr(path.rfind('/') + 1);
        if (file.starts_with(where.start)) where.found.emplace_back(path);
        return 0;
      },
      &search);
  return search.found;
}

void note_second_copy() noexcept {
  second_copy.store(true);
}

void require_usable() {
  const std::string running = torch_running_under();
  if (!same_minor_version(running, kTorchMajor, kTorchMinor)) {
    throw Error(ErrorCode::kWrongTorch,
                "This Limbo is built for torch " + torch_built_for() +
                    ", and this process runs torch " + running + ".",
                "Install the Limbo for that version, or build it with that torch at hand.");
  }
  if (second_copy.load()) {
    throw Error(ErrorCode::kAlreadyInUse,
                "Another copy of Limbo was loaded into this process first; loaded are: " +
                    joined(loaded_paths("libtorch_limbo")) + ".",
                "Load one of them only.");
  }
  if (const auto cores = loaded_paths("liblimbo"); cores.size() > 1) {
    throw Error(ErrorCode::kAlreadyInUse,
                "Two copies of Limbo's core are loaded into this process: " + joined(cores) + ".",
                "Load one of them only.");
  }
}

bool settings_name(std::string_view text, std::string_view key) {
  int depth = 0;  // inside "[...]" there are values only
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    const char c = at < text.size() ? text[at] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c != ',' || (depth != 0 && at < text.size())) continue;
    std::string_view entry = text.substr(begin, at - begin);
    begin = at + 1;
    entry = entry.substr(0, entry.find(':'));
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    if (entry == key) return true;
  }
  return false;
}

void require_settings_allow() {
  const std::string settings = allocator_settings();
  if (settings_name(settings, "backend")) {
    throw Error(ErrorCode::kBadArgument,
                "The allocator settings of torch name a backend (\"" + settings +
                    "\"), and torch accepts none but its own there.",
                "Take `backend:` out of PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.");
  }
  try {
    (void)c10::CachingAllocator::AcceleratorAllocatorConfig::instance();  // parses them, once
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kBadArgument, "torch refuses its allocator settings (\"" + settings +
                                             "\"): " + error.what_without_backtrace());
  }
}

void require_device_unused(c10::cuda::CUDACachingAllocator::CUDAAllocator& current, int device) {
  constexpr const char* kAdvice =
      "Install Limbo before the first CUDA tensor is made: at the start of the program, or with "
      "LIMBO_ENABLE=1 in the environment.";
  c10::CachingDeviceAllocator::DeviceStats stats;
  try {
    stats = current.getDeviceStats(static_cast<c10::DeviceIndex>(device));
  } catch (const c10::Error&) {
    throw Error(ErrorCode::kAlreadyInUse,
                "The CUDA allocator \"" + current.name() +
                    "\" is in place and initialised, and cannot say whether its memory is used.",
                kAdvice);
  }
  if (stats.reserved_bytes[0].current == 0) return;
  throw Error(ErrorCode::kAlreadyInUse,
              "CUDA memory is in use already: the allocator \"" + current.name() + "\" holds " +
                  usage_text(stats, device) + ".",
              kAdvice);
}

void require_unused(c10::cuda::CUDACachingAllocator::CUDAAllocator& current) {
  if (!current.initialized()) return;
  const int count = c10::cuda::device_count();
  for (int device = 0; device < count; ++device) require_device_unused(current, device);
}

void warn_about_settings() {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    TORCH_WARN("limbo: expandable_segments:True has no effect yet; segments come from cudaMalloc.");
  }
  std::vector<std::string> ignored;
  const std::string settings = allocator_settings();
  for (const char* key :
       {"max_split_size_mb", "max_non_split_rounding_mb", "garbage_collection_threshold",
        "roundup_power2_divisions", "large_segment_size_mb"}) {
    if (settings_name(settings, key)) ignored.emplace_back(key);
  }
  if (!ignored.empty()) {
    TORCH_WARN("limbo: these allocator settings have no effect yet: ", joined(ignored), ".");
  }
}

}  // namespace limbo
