// What the tests of the simulated device share.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/device/sim_device.h"
#include "allocator/error.h"
#include "tests/support/balance.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"
#include "tests/support/sizes.h"

namespace limbo::testing {

using std::chrono::microseconds;
using std::chrono::milliseconds;

inline std::unique_ptr<SimDevice> make_sim() {
  std::unique_ptr<Device> made = make_simulated_device();
  return std::unique_ptr<SimDevice>(&as_sim(*made.release()));
}

// Sets an environment variable, and puts back what was there.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Words of host memory in a memfd, mapped here and registered with no device.
class PlainWords {
 public:
  explicit PlainWords(std::size_t size_bytes = 4096, int fd = -1)
      : size_bytes_(size_bytes),
        fd_(fd >= 0 ? fd : ::memfd_create("limbo-test-words", MFD_CLOEXEC)) {
    if (fd < 0 && ::ftruncate(fd_, static_cast<off_t>(size_bytes)) != 0) {
      throw std::runtime_error("ftruncate");
    }
    data_ = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error("mmap");
  }
  ~PlainWords() {
    ::munmap(data_, size_bytes_);
    ::close(fd_);
  }
  PlainWords(const PlainWords&) = delete;
  PlainWords& operator=(const PlainWords&) = delete;

  [[nodiscard]] HostMemory host_memory(bool writable = true) const {
    return {data_, size_bytes_, fd_, writable};
  }
  [[nodiscard]] std::uint64_t* at(std::size_t index) const {
    return static_cast<std::uint64_t*>(data_) + index;
  }
  [[nodiscard]] std::uint64_t load(std::size_t index) const {
    return std::atomic_ref<std::uint64_t>(*at(index)).load(std::memory_order_acquire);
  }
  void store(std::size_t index, std::uint64_t value) const {
    std::atomic_ref<std::uint64_t>(*at(index)).store(value, std::memory_order_release);
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  std::size_t size_bytes_;
  int fd_;
  void* data_;
};

inline std::vector<std::uint32_t> read_words(Device& device, StreamRef stream, const void* from,
                                             std::size_t count) {
  std::vector<std::uint32_t> words(count);
  device.copy_to_host(stream, words.data(), from, count * sizeof(std::uint32_t));
  return words;
}

// Runs `call` and gives the text of the device error that it throws; fails where it throws none.
template <typename Call>
std::string device_error(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeviceError) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

#define EXPECT_DEVICE_ERROR(statement, words)                                                  \
  EXPECT_PRED2(::limbo::testing::contains, ::limbo::testing::device_error([&] { statement; }), \
               words)

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every test has a machine of its own, and leaves neither it nor anything else behind.
class OwnMachineTest : public BalancedTest {
 protected:
  void SetUp() override {
    sandbox_.emplace();
    BalancedTest::SetUp();
  }
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(sandbox_->sim_machine()); }));
    BalancedTest::TearDown();
    sandbox_.reset();
  }

  std::optional<Sandbox> sandbox_;
};

}  // namespace limbo::testing
