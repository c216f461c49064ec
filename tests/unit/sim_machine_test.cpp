// The simulated machine survives whoever dies in it.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "allocator/device/sim_machine.h"
#include "allocator/device/sim_machine_lock.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"
#include "tests/unit/sim_support.h"

namespace limbo::testing {
namespace {

class SimMachine : public OwnMachineTest {};

sim::MachineShape small_shape() {
  return {1, 64 * kMiB};
}

// Joins the machine itself and dies under its mutex, with a row half written.
LIMBO_CHILD_ROLE(sim_dies_locked) {
  const auto machine = sim::Machine::join(child.argument(0), small_shape(), ::getpid());
  const auto kept = machine->allocate(0, 4 * kMiB);
  const auto given_up = machine->allocate(0, 4 * kMiB);
  static_cast<void>(kept);
  const sim::MachineLock lock(*machine);
  // As release() does just before it gives the memory back.
  void* const tables =
      ::mmap(nullptr, sim::table_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, machine->fd(), 0);
  auto* const header = static_cast<sim::MachineHeader*>(tables);
  std::memset(header->allocations[given_up->index].holders, 0,
              sizeof(header->allocations[given_up->index].holders));
  header->used_units[0] = 12345;
  child.send("locked");
  ::raise(SIGKILL);
  return 1;
}

TEST_F(SimMachine, IsRepairedAfterADeathUnderItsMutex) {
  auto machine = sim::Machine::join(sandbox_->sim_machine(), small_shape(), ::getpid());
  ChildProcess dying("sim_dies_locked", {sandbox_->sim_machine()});
  dying.expect("locked");
  EXPECT_EQ(dying.wait().code, SIGKILL);
  // The row without holders has gone back, the dead process's other one goes when it is missed.
  EXPECT_EQ(machine->live_allocations(), 1U);
  EXPECT_EQ(machine->memory_info(0).free_bytes, 60 * kMiB);
  const auto all = machine->allocate(0, 64 * kMiB);
  ASSERT_TRUE(all);
  EXPECT_EQ(machine->live_allocations(), 1U);
  EXPECT_EQ(machine->live_processes(), 1U);
  machine->release(*all);
  EXPECT_EQ(machine->memory_info(0).free_bytes, 64 * kMiB);
  machine->leave();
}

TEST_F(SimMachine, FreedMemoryComesBackZeroedAndCostsNothing) {
  auto machine = sim::Machine::join(sandbox_->sim_machine(), small_shape(), ::getpid());
  const auto piece = machine->allocate(0, 16 * kMiB);
  void* const memory = ::mmap(nullptr, piece->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                              machine->fd(), static_cast<off_t>(piece->file_offset));
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, piece->size_bytes);
  machine->release(*piece);
  EXPECT_EQ(*static_cast<char*>(memory), 0);
  ::munmap(memory, piece->size_bytes);
  machine->leave();
}

TEST_F(SimMachine, FillsEveryGap) {
  auto machine = sim::Machine::join(sandbox_->sim_machine(), small_shape(), ::getpid());
  std::mt19937 random(1);
  std::vector<sim::Piece> pieces;
  std::size_t used = 0;
  for (int step = 0; step < 2'000; ++step) {
    const std::size_t size = (1 + random() % 8) * 2 * kMiB;
    if (random() % 2 == 0) {
      const auto piece = machine->allocate(0, size);
      // Room is never lost to too small gaps: the range is four times the capacity.
      ASSERT_EQ(piece.has_value(), used + size <= 64 * kMiB) << "step " << step;
      if (!piece) continue;
      for (const sim::Piece& other : pieces) {
        ASSERT_TRUE(piece->file_offset >= other.file_offset + other.size_bytes ||
                    other.file_offset >= piece->file_offset + piece->size_bytes);
      }
      pieces.push_back(*piece);
      used += size;
    } else if (!pieces.empty()) {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      used -= pieces.back().size_bytes;
      machine->release(pieces.back());
      pieces.pop_back();
    }
    ASSERT_EQ(machine->memory_info(0).free_bytes, 64 * kMiB - used);
  }
  machine->leave();
}

LIMBO_CHILD_ROLE(sim_busy) {
  const auto sim = make_sim();
  MemoryHandle handle;
  const auto bytes = child.receive_bytes();
  std::memcpy(handle.bytes.data(), bytes.data(), bytes.size());
  child.send(std::to_string(sim->companion_pid()));
  while (true) {
    void* const opened = sim->open_memory(0, handle);
    void* const data = sim->try_allocate(0, 4 * kMiB);
    sim->fill({0, nullptr}, data, 1, 256);
    sim->copy({0, nullptr}, opened, data, 1024);
    sim->close_memory(0, opened);
    sim->free(0, data);
  }
}

void send_handle(ChildProcess& child, SimDevice& sim, void* data) {
  const MemoryHandle handle = sim.export_memory(0, data);
  child.send_bytes(handle.bytes);
}

TEST_F(SimMachine, IsWholeAfterKillsAtRandomMoments) {
  const auto sim = make_sim();
  void* const data = sim->try_allocate(0, 2 * kMiB);
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    ChildProcess first("sim_busy");
    ChildProcess second("sim_busy");
    for (ChildProcess* const child : {&first, &second}) {
      send_handle(*child, *sim, data);
      static_cast<void>(child->receive());
    }
    std::this_thread::sleep_for(microseconds(random() % 8'000));
    first.kill();
    EXPECT_TRUE(second.running()) << second.output();
    second.kill();
  }
  EXPECT_TRUE(eventually([&] { return sim->balance().machine_processes == 1; }));
  EXPECT_EQ(sim->balance().machine_allocations, 1U);
  sim->free(0, data);
  EXPECT_EQ(sim->memory_info(0).free_bytes, sim->memory_info(0).total_bytes);
}

void kill_and_wait(std::int64_t pid) {
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  ASSERT_GE(pidfd, 0);
  ::kill(static_cast<pid_t>(pid), SIGKILL);
  pollfd ended{pidfd, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 30'000), 1);
  ::close(pidfd);
}

LIMBO_CHILD_ROLE(sim_parked) {
  const auto sim = make_sim();
  static_cast<void>(sim->try_allocate(0, 2 * kMiB));
  child.send(std::to_string(sim->companion_pid()));
  child.park();
  return 0;
}

TEST_F(SimMachine, StartsAnewWhereEverybodyWasKilled) {
  ChildProcess child("sim_parked");
  kill_and_wait(std::stoll(child.receive()));
  child.kill();
  EXPECT_TRUE(std::filesystem::exists(sandbox_->sim_machine()));  // nobody was left to remove it

  const auto next = make_sim();
  EXPECT_EQ(next->memory_info(0).free_bytes, next->memory_info(0).total_bytes);
  EXPECT_EQ(next->balance().machine_processes, 1U);
}

TEST_F(SimMachine, ALostCompanionIsALostDevice) {
  const auto other = make_sim();
  const auto sim = make_sim();
  void* const data = sim->try_allocate(0, 2 * kMiB);
  const MemoryHandle handle = sim->export_memory(0, data);
  const EventHandle event = sim->create_event(0);
  const SimHold hold = sim->hold_stream({0, nullptr});
  static_cast<void>(hold);
  sim->record_event({0, nullptr}, event);
  kill_and_wait(sim->companion_pid());
  EXPECT_DEVICE_ERROR(static_cast<void>(sim->query_event(0, event)), "device lost");
  EXPECT_DEVICE_ERROR(sim->synchronize_device(0), "device lost");
  EXPECT_DEVICE_ERROR(static_cast<void>(sim->try_allocate(0, 512)), "device lost");
  EXPECT_DEVICE_ERROR(static_cast<void>(other->open_memory(0, handle)), "invalid resource handle");
  void* const all = other->try_allocate(0, other->memory_info(0).total_bytes);
  EXPECT_NE(all, nullptr);
  other->free(0, all);
}

TEST_F(SimMachine, RefusesWhatIsNotOne) {
  const auto refusal = [](const char* name, const std::string& value) {
    const ScopedVariable variable(name, value);
    return device_error([] { static_cast<void>(make_sim()->device_count()); });
  };
  EXPECT_PRED2(contains, refusal("LIMBO_SIM_MACHINE", sandbox_->path()), "Opening the simulated");
  EXPECT_PRED2(contains, refusal("LIMBO_SIM_MACHINE", sandbox_->path() / "no" / "where"),
               "No such file");
  EXPECT_PRED2(contains, refusal("LIMBO_SIM_COMPANION", "/nonexistent/one"), "/nonexistent/one");
  EXPECT_PRED2(contains, refusal("LIMBO_SIM_COMPANION", "/bin/true"), "did not answer");
  // An error leaves the device usable.
  const auto sim = make_sim();
  {
    const ScopedVariable memory("LIMBO_SIM_MEMORY_MB", "1");
    EXPECT_THROW(static_cast<void>(sim->device_count()), Error);
  }
  EXPECT_EQ(sim->device_count(), 1);
}

TEST_F(SimMachine, StartsAnewWhereItsFileIsSomethingElse) {
  std::ofstream(sandbox_->sim_machine()) << "something else";
  const auto sim = make_sim();
  EXPECT_EQ(sim->device_count(), 1);
}

}  // namespace
}  // namespace limbo::testing
