// An allocator for a memory pool, as a user would write one: straight to the driver, and counting.
// Compiled by the tests with nothing but a C++ compiler; the driver is found at run time.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>

namespace {

using Allocate = int (*)(void**, std::size_t);
using Free = int (*)(void*);

void* driver() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return library;
}

constexpr std::size_t kShiftBytes = 4096;

std::atomic<long> allocations{0};
std::atomic<long> frees{0};
std::atomic<long> bytes{0};
std::atomic<long> wrong_sizes{0};  // frees that were told another size than the allocation

// What is allocated, with its size; the tests have few.
struct Known {
  std::atomic<void*> data{nullptr};
  std::atomic<std::size_t> size_bytes{0};
};
Known known[256];

}  // namespace

extern "C" {

void* counting_alloc(std::size_t size_bytes, int /*device*/, void* /*stream*/) {
  static const auto allocate = reinterpret_cast<Allocate>(dlsym(driver(), "cuMemAlloc_v2"));
  void* data = nullptr;
  if (allocate == nullptr || allocate(&data, size_bytes) != 0) return nullptr;
  ++allocations;
  bytes += static_cast<long>(size_bytes);
  for (Known& each : known) {
    void* none = nullptr;
    if (each.data.compare_exchange_strong(none, data)) {
      each.size_bytes = size_bytes;
      break;
    }
  }
  return data;
}

void counting_free(void* data, std::size_t size_bytes, int /*device*/, void* /*stream*/) {
  static const auto give_back = reinterpret_cast<Free>(dlsym(driver(), "cuMemFree_v2"));
  ++frees;
  for (Known& each : known) {
    if (each.data != data) continue;
    if (each.size_bytes != size_bytes) ++wrong_sizes;
    bytes -= static_cast<long>(each.size_bytes);
    each.data = nullptr;
    break;
  }
  if (give_back != nullptr) give_back(data);
}

// The same, some bytes behind the start of what the driver gave.
void* shifted_alloc(std::size_t size_bytes, int device, void* stream) {
  void* data = counting_alloc(size_bytes + kShiftBytes, device, stream);
  return data == nullptr ? nullptr : static_cast<char*>(data) + kShiftBytes;
}

void shifted_free(void* data, std::size_t size_bytes, int device, void* stream) {
  counting_free(static_cast<char*>(data) - kShiftBytes, size_bytes + kShiftBytes, device, stream);
}

long counting_allocations() {
  return allocations;
}
long counting_frees() {
  return frees;
}
long counting_bytes() {
  return bytes;
}
long counting_wrong_sizes() {
  return wrong_sizes;
}
}
