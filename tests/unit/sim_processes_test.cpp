// The simulated device between processes: handles, deaths, fork children, what stays behind.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"
#include "tests/unit/sim_support.h"

namespace limbo::testing {
namespace {

constexpr StreamRef kDefault{0, nullptr};
constexpr std::chrono::seconds kLong{600};

std::vector<std::byte> bytes_of(const MemoryHandle& handle) {
  return {handle.bytes.begin(), handle.bytes.end()};
}

MemoryHandle handle_of(const std::vector<std::byte>& bytes) {
  MemoryHandle handle;
  std::memcpy(handle.bytes.data(), bytes.data(), handle.bytes.size());
  return handle;
}

std::uint32_t load(const void* data) {
  return std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(const_cast<void*>(data)))
      .load(std::memory_order_relaxed);
}

void store(void* data, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(data))
      .store(value, std::memory_order_relaxed);
}

// True while somebody goes on writing `value` to `data`.
bool is_written(void* data, std::uint32_t value) {
  store(data, 0);
  return eventually([&] { return load(data) == value; }, milliseconds(500));
}

class SimProcesses : public OwnMachineTest {};

// Allocates, sends the handle, frees when told.
LIMBO_CHILD_ROLE(sim_producer) {
  const auto sim = make_sim();
  void* const data = sim->try_allocate(0, 4 * kMiB);
  sim->fill(kDefault, data, 42, kMiB);
  sim->synchronize_stream(kDefault);
  child.send_bytes(bytes_of(sim->export_memory(0, data)));
  if (child.try_receive() == "free") {
    sim->free(0, data);
    child.send("freed");
  }
  child.park();
  return 0;
}

// Opens what it is sent and writes it with a kernel. "line": with a life line that it gives to the
// device; "fork": and with a child of its own that sleeps; "held": the same, with the kernel behind
// a hold; "exec": becomes another program when told.
LIMBO_CHILD_ROLE(sim_writer) {
  const auto sim = make_sim();
  void* const data = sim->open_memory(0, handle_of(child.receive_bytes()));
  sim->hold_while_work_runs(::open(child.argument(1).c_str(), O_WRONLY | O_CLOEXEC));
  // Nobody can release the hold of a dead process: what stands behind it goes on.
  if (child.argument(0) == "held") static_cast<void>(sim->hold_stream(kDefault));
  sim->enqueue_kernel(kDefault, kLong, data, 4096, 7);
  if (child.argument(0) == "exec") {
    child.send("ready");
    static_cast<void>(child.try_receive());
    ::execl("/bin/sleep", "sleep", "600", nullptr);
    return 1;
  }
  if (child.argument(0) == "fork" || child.argument(0) == "held") {
    const pid_t sleeper = ::fork();
    if (sleeper == 0) {
      while (true) ::pause();
    }
    child.send(std::to_string(sleeper));
  } else {
    child.send("ready");
  }
  child.park();
  return 0;
}

TEST_F(SimProcesses, AHandleOpensInOtherProcessesAndNotInItsMakers) {
  ChildProcess producer("sim_producer");
  const MemoryHandle handle = handle_of(producer.receive_bytes());
  const auto sim = make_sim();
  void* const first = sim->open_memory(0, handle);
  EXPECT_EQ(sim->open_memory(0, handle), first);
  EXPECT_EQ(read_words(*sim, kDefault, first, kMiB), std::vector<std::uint32_t>(kMiB, 42));
  sim->close_memory(0, first);
  EXPECT_EQ(load(first), 42U);
  sim->close_memory(0, first);
  EXPECT_DEVICE_ERROR(sim->close_memory(0, first), "invalid argument");

  void* const own = sim->try_allocate(0, 2 * kMiB);
  const MemoryHandle ours = sim->export_memory(0, own);
  EXPECT_EQ(ours, sim->export_memory(0, own));
  EXPECT_DEVICE_ERROR(static_cast<void>(sim->open_memory(0, ours)), "invalid device context");
  sim->free(0, own);
  void* const again = sim->try_allocate(0, 2 * kMiB);
  EXPECT_NE(ours, sim->export_memory(0, again));
  MemoryHandle nonsense;
  EXPECT_DEVICE_ERROR(static_cast<void>(sim->open_memory(0, nonsense)), "invalid argument");
  sim->free(0, again);
}

TEST_F(SimProcesses, FreedMemoryLivesWhileItIsMapped) {
  ChildProcess producer("sim_producer");
  const MemoryHandle handle = handle_of(producer.receive_bytes());
  const auto sim = make_sim();
  const std::size_t free_bytes = sim->memory_info(0).free_bytes;
  void* const data = sim->open_memory(0, handle);
  producer.send("free");
  producer.expect("freed");
  EXPECT_EQ(sim->memory_info(0).free_bytes, free_bytes);
  EXPECT_EQ(load(data), 42U);
  const auto third = make_sim();
  EXPECT_DEVICE_ERROR(static_cast<void>(third->open_memory(0, handle)), "invalid resource handle");
  EXPECT_EQ(sim->open_memory(0, handle), data);  // where it is mapped, it opens again
  sim->close_memory(0, data);
  sim->close_memory(0, data);
  EXPECT_EQ(sim->memory_info(0).free_bytes, free_bytes + 4 * kMiB);
}

TEST_F(SimProcesses, ADeadProducersMemoryStaysReadableAndOpensNoMore) {
  ChildProcess producer("sim_producer");
  const MemoryHandle handle = handle_of(producer.receive_bytes());
  const auto holder = make_sim();
  void* const data = holder->open_memory(0, handle);
  producer.kill();
  ASSERT_TRUE(eventually([&] { return holder->balance().machine_processes == 1; }));
  EXPECT_EQ(load(data), 42U);
  const auto late = make_sim();
  EXPECT_DEVICE_ERROR(static_cast<void>(late->open_memory(0, handle)), "invalid resource handle");
  EXPECT_EQ(late->balance().machine_allocations, 1U);
  holder->close_memory(0, data);
  EXPECT_EQ(late->balance().machine_allocations, 0U);
}

TEST_F(SimProcesses, AKilledProcessWritesNoMoreWhenItsLifeLineIsClosed) {
  const auto sim = make_sim();
  void* const data = sim->try_allocate(0, 2 * kMiB);
  const std::string line = sandbox_->path() / "line";
  ASSERT_EQ(::mkfifo(line.c_str(), 0600), 0);
  for (int round = 0; round < 5; ++round) {
    ChildProcess writer("sim_writer", {"line", line});
    writer.send_bytes(bytes_of(sim->export_memory(0, data)));
    const int end = ::open(line.c_str(), O_RDONLY | O_CLOEXEC);
    writer.expect("ready");
    ASSERT_TRUE(is_written(data, 7));
    writer.kill();
    char byte = 0;
    ASSERT_EQ(::read(end, &byte, 1), 0);
    store(data, 0);
    EXPECT_EQ(sim->balance().machine_processes, 1U);
    EXPECT_FALSE(eventually([&] { return load(data) != 0; }, milliseconds(5)));
    ::close(end);
  }
  sim->free(0, data);
}

// A process that is killed while a child that it forked lives, with its kernel as `mode` says.
void expect_writes_until_the_fork_child_ends(const Sandbox& sandbox, const std::string& mode) {
  const auto sim = make_sim();
  void* const data = sim->try_allocate(0, 2 * kMiB);
  const std::string line = sandbox.path() / "line";
  ASSERT_EQ(::mkfifo(line.c_str(), 0600), 0);
  ChildProcess writer("sim_writer", {mode, line});
  writer.send_bytes(bytes_of(sim->export_memory(0, data)));
  const int end = ::open(line.c_str(), O_RDONLY | O_CLOEXEC);
  const pid_t sleeper = std::stoi(writer.receive());
  writer.kill();
  EXPECT_TRUE(is_written(data, 7));
  EXPECT_EQ(sim->balance().machine_processes, 2U);
  ::kill(sleeper, SIGKILL);
  char byte = 0;
  ASSERT_EQ(::read(end, &byte, 1), 0);
  EXPECT_EQ(sim->balance().machine_processes, 1U);
  EXPECT_FALSE(is_written(data, 7));
  ::close(end);
  sim->free(0, data);
}

TEST_F(SimProcesses, AKilledProcessGoesOnWritingWhileAForkChildLives) {
  expect_writes_until_the_fork_child_ends(*sandbox_, "fork");
}

TEST_F(SimProcesses, AHoldOfADeadProcessHoldsNothing) {
  expect_writes_until_the_fork_child_ends(*sandbox_, "held");
}

TEST_F(SimProcesses, ExecEndsTheWork) {
  const auto sim = make_sim();
  void* const data = sim->try_allocate(0, 2 * kMiB);
  ChildProcess writer("sim_writer", {"exec", "/dev/null"});
  writer.send_bytes(bytes_of(sim->export_memory(0, data)));
  writer.expect("ready");
  EXPECT_TRUE(is_written(data, 7));
  writer.send("go");
  EXPECT_TRUE(eventually([&] { return sim->balance().machine_processes == 1; }));
  EXPECT_TRUE(writer.running());
  writer.kill();
  sim->free(0, data);
}

LIMBO_CHILD_ROLE(sim_forker) {
  const auto sim = make_sim();
  void* const data = sim->try_allocate(0, 2 * kMiB);
  const pid_t forked = ::fork();
  if (forked == 0) {
    int refused = 0;
    try {
      sim->fill(kDefault, data, 9, 4);
    } catch (const Error& error) {
      refused = error.code() == ErrorCode::kDeviceError ? 1 : 0;
    }
    try {
      static_cast<void>(sim->query_event(0, nullptr));
    } catch (const Error& error) {
      refused += error.code() == ErrorCode::kDeviceError ? 1 : 0;
    }
    const_cast<std::unique_ptr<SimDevice>&>(sim).reset();
    ::_exit(refused);
  }
  int status = 0;
  ::waitpid(forked, &status, 0);
  child.send(std::to_string(WEXITSTATUS(status)));
  sim->fill(kDefault, data, 8, 4);
  child.send(std::to_string(read_words(*sim, kDefault, data, 1)[0]));
  sim->free(0, data);
  return 0;
}

TEST_F(SimProcesses, AForkChildIsRefusedAndDisturbsNothing) {
  ChildProcess forker("sim_forker");
  forker.expect("2");
  forker.expect("8");
  forker.finish();
}

TEST_F(SimProcesses, ClosingWaitsForTheDeviceAndLaunchesWaitMeanwhile) {
  const auto producer = make_sim();
  const auto sim = make_sim();
  void* const data = producer->try_allocate(0, 2 * kMiB);
  const MemoryHandle handle = producer->export_memory(0, data);
  void* const mapped = sim->open_memory(0, handle);
  const StreamRef busy{0, sim->create_stream(0)};
  const SimHold hold = sim->hold_stream(busy);
  std::atomic<int> closed{0};
  std::atomic<int> launched{0};
  std::thread closer([&] {
    sim->close_memory(0, mapped);
    closed = 1;
  });
  // The closing has begun when a launch waits: for longer than a thread is kept from a processor.
  std::thread launcher([&] {
    while (closed == 0) {
      sim->enqueue_kernel(kDefault, microseconds(1), nullptr, 0, 0);
      ++launched;
    }
  });
  int before = -1;
  int looks = 0;
  ASSERT_TRUE(eventually([&] {
    const int now = launched;
    looks = now == before ? looks + 1 : 0;
    before = now;
    std::this_thread::sleep_for(milliseconds(2));
    return looks > 150;
  }));
  EXPECT_EQ(closed, 0);
  // Opening and allocating do not wait.
  void* const more = sim->try_allocate(0, 2 * kMiB);
  void* const reopened = sim->open_memory(0, handle);
  EXPECT_NE(reopened, mapped);
  sim->release_hold(hold);
  closer.join();
  launcher.join();
  sim->close_memory(0, reopened);
  sim->free(0, more);
  producer->free(0, data);
}

}  // namespace
}  // namespace limbo::testing
