#include "tests/unit/short_host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

constexpr long kNever = -1;
constexpr long kFailed = 0;

// How many allocations the thread has left, the first that fails included.
thread_local constinit long countdown = kNever;
thread_local constinit long failures_left = 0;

void count_one() {
  if (countdown == kNever || (countdown > kFailed && --countdown > kFailed)) return;
  if (failures_left <= 0) return;
  --failures_left;
  throw std::bad_alloc();
}

void* memory_or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The whole test program's, the library's included.
void* operator new(std::size_t size_bytes) {
  count_one();
  return memory_or_throw(std::malloc(std::max<std::size_t>(size_bytes, 1)));
}
void* operator new(std::size_t size_bytes, std::align_val_t alignment) {
  count_one();
  const auto unit = static_cast<std::size_t>(alignment);
  return memory_or_throw(std::aligned_alloc(unit, (size_bytes + unit - 1) / unit * unit));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*size_bytes*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*size_bytes*/,
                     std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

// Arrays, and those that ask for no exception: the sanitizers have functions of their own for them,
// which would not come here.
void* operator new[](std::size_t size_bytes) {
  return ::operator new(size_bytes);
}
void* operator new(std::size_t size_bytes, const std::nothrow_t& /*quietly*/) noexcept {
  try {
    return ::operator new(size_bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size_bytes, const std::nothrow_t& quietly) noexcept {
  return ::operator new(size_bytes, quietly);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t /*size_bytes*/) noexcept {
  std::free(memory);
}

namespace limbo::testing {

ShortHostMemory::ShortHostMemory(long n, long in_a_row) noexcept {
  countdown = n;
  failures_left = in_a_row;
}
ShortHostMemory::~ShortHostMemory() {
  countdown = kNever;
}
bool ShortHostMemory::failed() const noexcept {
  return countdown == kFailed;
}

PlentyOfHostMemory::PlentyOfHostMemory() noexcept : countdown_(std::exchange(countdown, kNever)) {}
PlentyOfHostMemory::~PlentyOfHostMemory() {
  countdown = countdown_;
}

}  // namespace limbo::testing
