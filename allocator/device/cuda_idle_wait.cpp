#include "allocator/device/cuda_idle_wait.h"

#ifdef LIMBO_HAVE_CUDA

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <system_error>

#include "allocator/error.h"

namespace limbo {
namespace {

// Smaller memory shares a driver's allocation with other such memory, and need not be given back.
constexpr std::size_t kTakenBytes = std::size_t{2} << 20;

[[noreturn]] void fail(int device, const std::string& why) {
  throw Error(
      ErrorCode::kDeviceError,
      "Device " + std::to_string(device) + " is full: not even the " +
          std::to_string(kTakenBytes >> 20U) +
          " MiB are left that are taken to wait until it is idle, and no page of host memory "
          "can be registered instead (" +
          why + ").",
      "Wait when some of its memory has been freed; where memory may not be locked, raise the "
      "limit (ulimit -l).");
}

// A page of host memory for the wait alone, which fork children do not inherit.
class HostPage {
 public:
  explicit HostPage(int device) {
    void* data =
        ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) fail(device, "mmap: " + std::generic_category().message(errno));
    data_ = data;
    ::madvise(data_, size_bytes_, MADV_DONTFORK);
  }
  ~HostPage() {
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
  }
  HostPage(const HostPage&) = delete;
  HostPage& operator=(const HostPage&) = delete;

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }

  // Gives the page up and leaves it mapped until the process ends.
  void leave_mapped() noexcept { data_ = nullptr; }

 private:
  const std::size_t size_bytes_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* data_ = nullptr;
};

void wait_by_host_memory(const DriverEntryPoints& driver, int device) {
  HostPage page(device);
  // Of this context alone, unlike the memory with the words: the fewer devices are waited for the
  // better. (With two GPUs, the other one busy, neither way waited for that one.)
  const CUresult made =
      driver.cuMemHostRegister(page.data(), page.size_bytes(), CU_MEMHOSTREGISTER_DEVICEMAP);
  if (is_sticky(made)) check_driver(driver, "cuMemHostRegister", made);
  if (made != CUDA_SUCCESS) fail(device, describe_driver_error(driver, "cuMemHostRegister", made));
  const CUresult given_back = driver.cuMemHostUnregister(page.data());
  // The driver would refuse another page at an address that it has not let go of.
  if (given_back != CUDA_SUCCESS) page.leave_mapped();
  check_driver(driver, "cuMemHostUnregister", given_back);
}

}  // namespace

void wait_until_idle(const DriverEntryPoints& driver, int device) {
  CUdeviceptr taken = 0;
  const CUresult made = driver.cuMemAlloc(&taken, kTakenBytes);
  if (made == CUDA_ERROR_OUT_OF_MEMORY) {
    wait_by_host_memory(driver, device);
    return;
  }
  check_driver(driver, "cuMemAlloc", made);
  check_driver(driver, "cuMemFree", driver.cuMemFree(taken));
}

}  // namespace limbo

#endif
