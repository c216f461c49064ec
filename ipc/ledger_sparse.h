// A fixed-size array that takes room only where it is touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>

namespace limbo {

// Elements start as zero bytes; whoever needs more makes one by placement new. Private memory.
template <class T>
class SparseArray {
 public:
  static_assert(std::is_trivially_destructible_v<T>);

  explicit SparseArray(std::size_t size) : size_bytes_(size * sizeof(T)) {
    void* data = ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
  }
  ~SparseArray() { ::munmap(data_, size_bytes_); }
  SparseArray(const SparseArray&) = delete;
  SparseArray& operator=(const SparseArray&) = delete;

  [[nodiscard]] T& operator[](std::size_t index) noexcept { return data_[index]; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept { return data_[index]; }

 private:
  T* data_ = nullptr;
  std::size_t size_bytes_;
};

}  // namespace limbo
