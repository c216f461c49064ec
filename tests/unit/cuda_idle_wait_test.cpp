// How the CUDA device waits until a GPU is idle, also one that is full: against a stand-in for libcuda
// that counts.
#ifdef LIMBO_FAKE_DRIVER_DIR

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/device/device.h"
#include "allocator/error.h"
#include "tests/support/child_process.h"
#include "tests/support/cuda_driver.h"

namespace limbo::testing {
namespace {

int count_of(const char* name) {
  return driver_function<int (*)()>(name)();
}

// What became of the memory that was last to be registered since this was last asked.
std::string page_of_wait() {
  void* const data = driver_function<void* (*)()>("fakeCudaRegisteredLast")();
  if (data == nullptr) return "no page";
  unsigned char resident = 0;
  const auto size_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return ::mincore(data, size_bytes, &resident) == 0 ? "a page that is mapped" : "a page";
}

// How the device was waited for since, how often in a way that ends captures, and what is still taken.
class WaitCounts {
 public:
  WaitCounts() { (void)page_of_wait(); }

  std::string since() {
    const auto count_since = [](int before, const char* name) {
      return std::to_string(count_of(name) - before);
    };
    return "freed " + count_since(frees_, "fakeCudaFrees") + ", unregistered " +
           count_since(unregistrations_, "fakeCudaUnregistrations") + ", ended captures " +
           std::to_string(count_of("fakeCudaContextSynchronizations")) + ", kept " +
           count_since(allocated_, "fakeCudaAllocated") + " and " +
           count_since(registered_, "fakeCudaRegistered") + "; " + page_of_wait();
  }

 private:
  int frees_ = count_of("fakeCudaFrees");
  int unregistrations_ = count_of("fakeCudaUnregistrations");
  int allocated_ = count_of("fakeCudaAllocated");
  int registered_ = count_of("fakeCudaRegistered");
};

std::string outcome_of_waiting(Device& device) {
  try {
    device.synchronize_device(0);
  } catch (const Error& error) {
    return error.what();
  }
  return "waited";
}

std::string outcome_without_mappings(Device& device) {
  struct rlimit before {};
  if (::getrlimit(RLIMIT_AS, &before) != 0) return "no limit can be set";
  struct rlimit none = before;
  none.rlim_cur = 0;
  ::setrlimit(RLIMIT_AS, &none);
  std::string outcome = outcome_of_waiting(device);
  ::setrlimit(RLIMIT_AS, &before);
  return outcome;
}

// All of them wait at the same time, or none ends.
std::string outcome_in_threads(Device& device) {
  constexpr int kThreads = 4;
  std::atomic<int> waited{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  driver_function<int (*)(int)>("fakeCudaUnregisterTogether")(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] { waited += outcome_of_waiting(device) == "waited" ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  return "waited " + std::to_string(waited);
}

// Does what it is told, and says how each wait went.
LIMBO_CHILD_ROLE(wait_for_a_gpu) {
  alignas(4096) static std::uint64_t words[512];
  const std::unique_ptr<Device> device = make_cuda_device();
  device->register_host_memory(0, {words, sizeof(words), -1, true});
  device->wait_word({0, nullptr}, words, 0);
  while (const std::optional<std::string> told = child.try_receive()) {
    WaitCounts waits;
    std::string outcome = "done";
    if (*told == "full" || *told == "room") {
      driver_function<int (*)(int)>("fakeCudaIsFull")(*told == "full" ? 1 : 0);
    } else if (told->starts_with("error ")) {
      setenv("FAKE_CUDA_FAIL_WITH", told->substr(6).c_str(), 1);
    } else if (told->starts_with("refuse ")) {
      setenv("FAKE_CUDA_FAIL", told->substr(7).c_str(), 1);
    } else if (*told == "wait") {
      outcome = outcome_of_waiting(*device);
    } else if (*told == "wait without mappings") {
      outcome = outcome_without_mappings(*device);
    } else if (*told == "wait in threads") {
      outcome = outcome_in_threads(*device);
    }
    child.send(outcome);
    child.send(waits.since());
  }
  return 0;
}

class CudaIdleWait : public ::testing::Test {
 protected:
  void TearDown() override {
    child_.close_input();
    child_.finish();
  }

  void tell(const std::string& what) { (void)outcome(what); }
  // The outcome, and how the device was waited for.
  std::pair<std::string, std::string> outcome(const std::string& what) {
    child_.send(what);
    std::string first = child_.receive();
    return {std::move(first), child_.receive()};
  }

  void expect_waited(const std::string& how) {
    const auto [said, waits] = outcome("wait");
    EXPECT_EQ(said, "waited");
    EXPECT_EQ(waits, how);
  }
  // The driver's own words, and no advice.
  void expect_refused(const std::string& call, const std::string& how) {
    const auto [said, waits] = outcome("wait");
    EXPECT_EQ(said, call + ": CUDA_ERROR_OF_THE_FAKE (it was told to fail).");
    EXPECT_EQ(waits, how);
  }
  void expect_full(const std::string& told, const std::string& why, const std::string& how) {
    const auto [said, waits] = outcome(told);
    EXPECT_TRUE(said.starts_with("Device 0 is full")) << said;
    EXPECT_NE(said.find(why), std::string::npos) << said;
    EXPECT_NE(said.find("ulimit -l"), std::string::npos) << said;
    EXPECT_EQ(waits, how);
  }

  static constexpr const char* kByDeviceMemory =
      "freed 1, unregistered 0, ended captures 0, kept 0 and 0; no page";
  static constexpr const char* kByHostMemory =
      "freed 0, unregistered 1, ended captures 0, kept 0 and 0; a page";

 private:
  ChildProcess child_{"wait_for_a_gpu", {}, {{{"LD_LIBRARY_PATH", LIMBO_FAKE_DRIVER_DIR}}}};
};

// Where nothing but host memory can be had, ever.
TEST_F(CudaIdleWait, OnAFullDeviceAPageOfHostMemoryIsRegisteredAndUnregistered) {
  tell("full");
  for (int i = 0; i < 3; ++i) expect_waited(kByHostMemory);
  tell("room");
  for (int i = 0; i < 3; ++i) expect_waited(kByDeviceMemory);
  tell("full");
  expect_waited(kByHostMemory);
}

TEST_F(CudaIdleWait, ThreadsWaitEachByAPageOfItsOwn) {
  tell("full");
  const auto [said, waits] = outcome("wait in threads");
  EXPECT_EQ(said, "waited 4");
  EXPECT_TRUE(waits.starts_with("freed 0, unregistered 4, ended captures 0, kept 0 and 0"))
      << waits;
}

TEST_F(CudaIdleWait, WhereHostMemoryCannotBeRegisteredEitherTheDeviceIsFull) {
  tell("full");
  tell("error 2");  // out of memory
  tell("refuse cuMemHostRegister");
  for (int i = 0; i < 2; ++i) {
    expect_full("wait", "(cuMemHostRegister: CUDA_ERROR_OF_THE_FAKE",
                "freed 0, unregistered 0, ended captures 0, kept 0 and 0; a page");
  }
  tell("refuse nothing");
  expect_waited(kByHostMemory);
}

// The sanitizers need mappings themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(CudaIdleWait, WhereNoPageCanBeMappedTheDeviceIsFull) {
  tell("full");
  for (int i = 0; i < 2; ++i) {
    expect_full("wait without mappings",
                "(mmap: ", "freed 0, unregistered 0, ended captures 0, kept 0 and 0; no page");
  }
  expect_waited(kByHostMemory);
}
#endif

TEST_F(CudaIdleWait, ALostContextIsReportedAsSuch) {
  tell("refuse all");
  expect_refused("cuMemAlloc", "freed 0, unregistered 0, ended captures 0, kept 0 and 0; no page");
  tell("full");
  expect_refused("cuMemHostRegister",
                 "freed 0, unregistered 0, ended captures 0, kept 0 and 0; a page");
}

// It may be in use still, and the driver would refuse another page there for ever.
TEST_F(CudaIdleWait, APageThatTheDriverDoesNotLetGoOfStaysMapped) {
  tell("full");
  tell("refuse cuMemHostUnregister");
  for (int i = 0; i < 2; ++i) {
    expect_refused(
        "cuMemHostUnregister",
        "freed 0, unregistered 0, ended captures 0, kept 0 and 1; a page that is mapped");
  }
  tell("refuse nothing");
  expect_waited(kByHostMemory);
}

}  // namespace
}  // namespace limbo::testing

#endif
