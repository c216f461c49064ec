#include "allocator/device/driver_entry_points.h"

#include <dlfcn.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace limbo {
namespace {

// Opened once and kept: its functions may be called until the process ends.
void* driver_library(std::string& why) {
  static const struct Library {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    std::string error;
    Library() {
      if (handle != nullptr) return;
      const char* text = dlerror();
      error = text != nullptr ? text : "unknown reason";
    }
  } library;
  if (library.handle == nullptr) {
    why = "NVIDIA's driver library cannot be loaded (" + library.error + ")";
  }
  return library.handle;
}

// A GPU's file of NVIDIA's kernel driver ("nvidia0"), or what stands for it under WSL.
bool is_gpu_file(std::string_view name) {
  if (name == "dxg") return true;
  constexpr std::string_view kPrefix = "nvidia";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         std::isdigit(static_cast<unsigned char>(name[kPrefix.size()])) != 0;
}

bool any_gpu_file() {
  std::error_code error;
  for (std::filesystem::directory_iterator it("/dev", error), end; !error && it != end;
       it.increment(error)) {
    if (is_gpu_file(it->path().filename().string())) return true;
  }
  return false;
}

}  // namespace

bool driver_present(std::string& why) {
  if (driver_library(why) == nullptr) return false;
  if (!any_gpu_file()) {
    why = "there is no GPU of NVIDIA here (no /dev/nvidia0 or the like)";
    return false;
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr && (*visible == '\0' || std::string_view(visible) == "-1")) {
    why = "CUDA_VISIBLE_DEVICES hides every GPU (it is \"" + std::string(visible) + "\")";
    return false;
  }
  return true;
}

#ifdef LIMBO_HAVE_CUDA

// cuda.h's macros turn a function's plain name into its versioned one before this spells it.
#define LIMBO_SPELL(name) #name
#define LIMBO_VERSIONED_NAME(name) LIMBO_SPELL(name)

namespace {

struct LoadedEntryPoints {
  DriverEntryPoints entries;
  bool usable = false;
  std::string why;

  LoadedEntryPoints() {
    if (driver_library(why) == nullptr) return;
#define LIMBO_LOAD_ENTRY(name) \
  entries.name =               \
      reinterpret_cast<decltype(entries.name)>(find_driver_symbol(LIMBO_VERSIONED_NAME(name)));
#define LIMBO_REQUIRE_ENTRY(name) \
  if (entries.name == nullptr) missing += std::string(" ") + LIMBO_VERSIONED_NAME(name);
    LIMBO_REQUIRED_DRIVER_ENTRIES(LIMBO_LOAD_ENTRY)
    LIMBO_OPTIONAL_DRIVER_ENTRIES(LIMBO_LOAD_ENTRY)
    entries.cuStreamGetCaptureInfo_v2 = reinterpret_cast<StreamCaptureInfoFunction>(
        find_driver_symbol("cuStreamGetCaptureInfo_v2"));
    std::string missing;
    LIMBO_REQUIRED_DRIVER_ENTRIES(LIMBO_REQUIRE_ENTRY)
#undef LIMBO_LOAD_ENTRY
#undef LIMBO_REQUIRE_ENTRY
    usable = missing.empty();
    if (!usable) why = "NVIDIA's driver is too old: it lacks" + missing;
  }
};

}  // namespace

const DriverEntryPoints* driver_entry_points(std::string& why) {
  static const LoadedEntryPoints loaded;
  if (!loaded.usable) {
    why = loaded.why;
    return nullptr;
  }
  return &loaded.entries;
}

void* find_driver_symbol(const char* name) noexcept {
  std::string why;
  void* library = driver_library(why);
  return library != nullptr ? dlsym(library, name) : nullptr;
}

std::string describe_driver_error(const DriverEntryPoints& driver, const char* call,
                                  CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
  if (driver.cuGetErrorString(result, &text) != CUDA_SUCCESS) text = nullptr;
  return std::string(call) + ": " +
         (name != nullptr ? name : "error " + std::to_string(static_cast<int>(result))) +
         (text != nullptr ? " (" + std::string(text) + ")" : "");
}

bool is_sticky(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
      return true;
    default:
      return false;
  }
}

void check_driver(const DriverEntryPoints& driver, const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  throw DriverError(describe_driver_error(driver, call, result) + ".", result);
}

#endif

}  // namespace limbo
