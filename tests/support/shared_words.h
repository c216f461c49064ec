// Words of host memory that streams write and wait on, as tests need them: a memfd, mapped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "allocator/device/device.h"

namespace limbo::testing {

// A memfd of one or more pages, mapped writable and registered with a device while it lives.
class SharedWords {
 public:
  explicit SharedWords(Device& device, std::size_t size_bytes = 4096);
  // Another process's words: `path` as its path() gave it. Mapped writable and registered.
  SharedWords(Device& device, const std::string& path, std::size_t size_bytes = 4096);
  ~SharedWords();
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;

  [[nodiscard]] std::uint64_t* word(std::size_t index) noexcept { return data_ + index; }
  [[nodiscard]] std::uint64_t load(std::size_t index) noexcept {
    return std::atomic_ref(data_[index]).load(std::memory_order_seq_cst);
  }
  void store(std::size_t index, std::uint64_t value) noexcept {
    std::atomic_ref(data_[index]).store(value, std::memory_order_seq_cst);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  // Under which a child of this process can open the same memfd.
  [[nodiscard]] std::string path() const;

 private:
  void map_and_register();

  Device& device_;
  std::size_t size_bytes_;
  int fd_;
  std::uint64_t* data_ = nullptr;
};

}  // namespace limbo::testing
