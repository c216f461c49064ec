// A stand-in for libnvidia-ml, for tests: it knows one GPU, fake_cuda.cpp's first, and on it this
// process, FAKE_NVML_PROCESSES - 1 others, and one whose memory is not known.
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace {

struct Process {
  unsigned pid;
  unsigned long long used_bytes;
};
constexpr int kSuccess = 0;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;
constexpr int kUnknown = 999;

bool fails(std::string_view name) {
  const char* failing = std::getenv("FAKE_NVML_FAIL");
  return failing != nullptr && name == failing;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return fails("nvmlInit") ? kUnknown : kSuccess;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::string_view(uuid) != "GPU-64646464-6464-6464-6464-646464646464") return kNotFound;
  static int gpu;
  *device = &gpu;
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses(void* /*device*/, unsigned* count, Process* processes) {
  if (fails("nvmlDeviceGetComputeRunningProcesses")) return kUnknown;
  const char* text = std::getenv("FAKE_NVML_PROCESSES");
  const auto known = static_cast<unsigned>(text != nullptr ? std::atoi(text) : 1);
  const unsigned room = *count;
  *count = known + 1;
  if (room < known + 1) return kInsufficientSize;
  processes[0] = {static_cast<unsigned>(::getpid()), 3ULL << 30U};
  for (unsigned i = 1; i < known; ++i) processes[i] = {i, i * (1ULL << 20U)};
  processes[known] = {known, ~0ULL};
  return kSuccess;
}

}  // extern "C"
