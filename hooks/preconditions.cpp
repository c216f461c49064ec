#include "hooks/preconditions.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <link.h>

#include <atomic>

#include "allocator/error.h"
#include "allocator/sizes.h"
#include "hooks/version.h"

namespace limbo {
namespace {

std::atomic<bool> second_copy{false};

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
                // One that Python makes says so from the start: being earlier would not help.
                "Install Limbo instead of it, without torch.cuda.memory.change_current_allocator.");
  }
  if (stats.reserved_bytes[0].current == 0) return;
  throw Error(ErrorCode::kAlreadyInUse,
              "CUDA memory is in use already: the allocator \"" + current.name() + "\" holds " +
                  usage_text(stats, device) + ".",
              kAdvice);
}

void require_unused(c10::cuda::CUDACachingAllocator::CUDAAllocator& current) {
  if (!current.initialized()) return;
  // The first before the devices are counted, which starts CUDA: plug-ins that Python makes say that
  // they are initialised from the start, and refuse this. Of those that answer CUDA is started.
  require_device_unused(current, 0);
  const int count = c10::cuda::device_count();
  for (int device = 1; device < count; ++device) require_device_unused(current, device);
}

}  // namespace limbo
