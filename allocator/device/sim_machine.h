// The simulated machine: GPUs whose memory is one sparse file that several processes share.
//
// The file starts with tables (processes, allocations) under one robust mutex; the memory of every
// device follows, in units of 2 MiB. Whoever comes first makes the file, the last one to leave
// removes it.
//
// Who is alive: the companion of every process holds a record lock on a byte of the file for as
// long as it runs, so that a row whose lock is free belongs to the dead, however they died.
//
// What survives a death at any moment: everything but the rows can be computed from the rows, a row
// counts only from the store of `live` on, and references are a set of processes, so that dropping
// one twice is harmless. The next one to take the mutex repairs (Machine::repair).
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/device/device.h"
#include "allocator/device/memory_users.h"

namespace limbo::sim {

inline constexpr std::size_t kUnitBytes = std::size_t{2} << 20;
inline constexpr std::uint32_t kMaxDevices = 8;
inline constexpr std::uint32_t kMaxProcesses = 256;
inline constexpr std::uint32_t kMaxAllocations = 1U << 16;
// Addresses are not scarce on a GPU, memory is: a device's range is this many times its capacity,
// so that free room is hardly ever in too small parts.
inline constexpr std::uint64_t kRangePerCapacity = 4;

struct MachineId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend bool operator==(const MachineId&, const MachineId&) = default;
};

// All fields of rows and header are guarded by the mutex; `live` is atomic only because a death
// between two stores must not leave them in another order.
struct ProcessRow {
  std::uint64_t generation;  // of the slot: counts the processes that have had it
  std::uint64_t alive;
  std::int64_t pid;  // for people
  std::uint64_t reserved;
};

struct AllocationRow {
  std::atomic<std::uint32_t> live;
  std::uint32_t device;
  std::uint64_t generation;  // of the row: goes up with every use
  std::uint64_t first_unit;  // in the device's range
  std::uint64_t units;
  std::uint32_t owner;  // process slot
  std::uint32_t freed_by_owner;
  std::uint64_t owner_generation;
  std::uint64_t holders[kMaxProcesses / 64];  // bit = process slot: the owner, and who has it open
};

struct MachineHeader {
  std::atomic<std::uint64_t> magic;  // stored last when the machine is made
  std::uint64_t layout_bytes;        // of the tables: another version has another
  MachineId id;
  std::uint32_t devices;
  std::uint32_t allocation_rows_used;  // high-water mark
  std::uint64_t capacity_units;        // per device
  std::uint64_t range_units;
  std::uint64_t used_units[kMaxDevices];
  std::uint64_t search_from[kMaxDevices];  // where the next search for room starts
  pthread_mutex_t mutex;
  ProcessRow processes[kMaxProcesses];
  AllocationRow allocations[kMaxAllocations];
};

// One process's place in the machine.
struct ProcessTicket {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
};

// A piece of device memory and where it lies in the file.
struct Piece {
  std::uint32_t index = 0;
  std::uint64_t generation = 0;
  std::uint32_t device = 0;  // of the machine, not of a process's visible ones
  std::uint64_t file_offset = 0;
  std::size_t size_bytes = 0;
};

struct MachineShape {
  std::uint32_t devices = 1;
  std::uint64_t memory_bytes = 0;  // per device
};

// Thread-safe, and safe between processes.
class Machine {
 public:
  // Opens the machine at `path`, or makes it with `shape`; takes a process slot and its life lock.
  // Called by a companion. Throws kDeviceError.
  static std::unique_ptr<Machine> join(const std::string& path, const MachineShape& shape,
                                       std::int64_t client_pid);

  // The view of the client whose companion has joined. Takes `fd`.
  Machine(int fd, ProcessTicket ticket);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Gives up every reference of this process; the last one removes the file. By the companion.
  void leave();

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] ProcessTicket ticket() const noexcept { return ticket_; }
  [[nodiscard]] std::uint32_t devices() const noexcept { return header_->devices; }
  [[nodiscard]] Uuid uuid(std::uint32_t device) const noexcept;
  [[nodiscard]] std::size_t total_bytes() const noexcept;  // the file's size
  [[nodiscard]] MemoryInfo memory_info(std::uint32_t device);
  // The processes that own live memory of the device.
  [[nodiscard]] std::vector<MemoryUser> memory_users(std::uint32_t device);
  [[nodiscard]] std::uint64_t live_allocations();
  [[nodiscard]] std::uint32_t live_processes();

  // Nothing when the device has no room.
  [[nodiscard]] std::optional<Piece> allocate(std::uint32_t device, std::size_t size_bytes);
  // Drops this process's reference: the owner's free, or the close of a piece that it has opened.
  void release(const Piece& piece);

  [[nodiscard]] MemoryHandle handle(const Piece& piece);
  // Takes a reference. Throws kDeviceError as the driver refuses.
  [[nodiscard]] Piece open(const MemoryHandle& handle);

 private:
  friend class MachineLock;
  Machine() = default;

  void map_tables();
  void expect_place(const char* call) const;
  void repair();
  void give_back(AllocationRow& row);
  void drop_process(std::uint32_t slot);
  void drop_dead();
  [[nodiscard]] bool process_lives(std::uint32_t slot) const;
  [[nodiscard]] std::optional<std::uint64_t> find_room(std::uint32_t device, std::uint64_t units);
  [[nodiscard]] AllocationRow* free_row();
  [[nodiscard]] Piece piece_of(const AllocationRow& row) const;

  std::string path_;  // empty in clients
  int fd_ = -1;
  MachineHeader* header_ = nullptr;
  ProcessTicket ticket_;
};

}  // namespace limbo::sim
