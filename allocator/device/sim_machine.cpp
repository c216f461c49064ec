#include "allocator/device/sim_machine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "allocator/device/sim_machine_lock.h"
#include "allocator/error.h"

namespace limbo::sim {

namespace {

constexpr std::uint64_t kHandleMagic = 0x4c44'4e48'4d49'534cULL;  // "LSIMHNDL"

// The 64 bytes of a memory handle.
struct HandleFields {
  std::uint64_t magic = kHandleMagic;
  MachineId machine;
  std::uint64_t generation = 0;
  std::uint64_t owner_generation = 0;
  std::uint32_t index = 0;
  std::uint32_t owner = 0;
  std::uint64_t reserved[2] = {0, 0};
};
static_assert(sizeof(HandleFields) == 64);

constexpr std::uint64_t units_of(std::size_t size_bytes) noexcept {
  return (size_bytes + kUnitBytes - 1) / kUnitBytes;
}

bool holds(const AllocationRow& row, std::uint32_t slot) noexcept {
  return ((row.holders[slot / 64] >> (slot % 64)) & 1) != 0;
}

void set_holder(AllocationRow& row, std::uint32_t slot, bool value) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  row.holders[slot / 64] = value ? row.holders[slot / 64] | bit : row.holders[slot / 64] & ~bit;
}

bool held_by_anyone(const AllocationRow& row) noexcept {
  return std::any_of(std::begin(row.holders), std::end(row.holders),
                     [](std::uint64_t word) { return word != 0; });
}

[[noreturn]] void refuse_open(const char* driver_words, const char* why) {
  throw Error(ErrorCode::kDeviceError,
              std::string("open_memory: ") + driver_words + " (" + why + ").");
}

}  // namespace

std::size_t table_bytes() noexcept {
  return (sizeof(MachineHeader) + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
}

Machine::Machine(int fd, ProcessTicket ticket) : fd_(fd), ticket_(ticket) {
  map_tables();
}

Machine::~Machine() {
  if (header_ != nullptr) ::munmap(header_, table_bytes());
  if (fd_ >= 0) ::close(fd_);
}

void Machine::map_tables() {
  void* const tables = ::mmap(nullptr, table_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (tables == MAP_FAILED) {
    throw Error(ErrorCode::kDeviceError,
                std::string("Mapping the simulated machine failed: ") + std::strerror(errno) + ".");
  }
  header_ = static_cast<MachineHeader*>(tables);
}

Uuid Machine::uuid(std::uint32_t device) const noexcept {
  Uuid result;
  std::memcpy(result.bytes.data(), &header_->id, sizeof(MachineId));
  result.bytes[15] = static_cast<std::uint8_t>(result.bytes[15] ^ device);
  return result;
}

std::size_t Machine::total_bytes() const noexcept {
  return table_bytes() + header_->devices * header_->range_units * kUnitBytes;
}

MemoryInfo Machine::memory_info(std::uint32_t device) {
  const MachineLock lock(*this);
  return {(header_->capacity_units - header_->used_units[device]) * kUnitBytes,
          header_->capacity_units * kUnitBytes};
}

std::vector<MemoryUser> Machine::memory_users(std::uint32_t device) {
  std::array<std::uint64_t, kMaxProcesses> units{};
  std::vector<MemoryUser> users;
  const MachineLock lock(*this);
  for (std::uint32_t i = 0; i < header_->allocation_rows_used; ++i) {
    const AllocationRow& row = header_->allocations[i];
    if (row.live.load(std::memory_order_relaxed) == 0 || row.device != device) continue;
    // Whoever had freed it, or has ended, is not the one that keeps it.
    const ProcessRow& owner = header_->processes[row.owner];
    if (row.freed_by_owner != 0 || owner.generation != row.owner_generation) continue;
    units[row.owner] += row.units;
  }
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    if (units[slot] == 0) continue;
    users.push_back({header_->processes[slot].pid, units[slot] * kUnitBytes, slot == ticket_.slot});
  }
  return users;
}

std::uint64_t Machine::live_allocations() {
  const MachineLock lock(*this);
  std::uint64_t count = 0;
  for (std::uint32_t i = 0; i < header_->allocation_rows_used; ++i) {
    count += header_->allocations[i].live.load(std::memory_order_relaxed);
  }
  return count;
}

std::uint32_t Machine::live_processes() {
  const MachineLock lock(*this);
  std::uint32_t count = 0;
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    if (header_->processes[slot].alive != 0 && process_lives(slot)) ++count;
  }
  return count;
}

Piece Machine::piece_of(const AllocationRow& row) const {
  return {static_cast<std::uint32_t>(&row - header_->allocations), row.generation, row.device,
          table_bytes() + (row.device * header_->range_units + row.first_unit) * kUnitBytes,
          row.units * kUnitBytes};
}

AllocationRow* Machine::free_row() {
  for (std::uint32_t i = 0; i < header_->allocation_rows_used; ++i) {
    if (header_->allocations[i].live.load(std::memory_order_relaxed) == 0) {
      return &header_->allocations[i];
    }
  }
  if (header_->allocation_rows_used == kMaxAllocations) return nullptr;
  return &header_->allocations[header_->allocation_rows_used++];
}

// Next fit over the gaps between the live rows.
std::optional<std::uint64_t> Machine::find_room(std::uint32_t device, std::uint64_t units) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // [first, end)
  for (std::uint32_t i = 0; i < header_->allocation_rows_used; ++i) {
    const AllocationRow& row = header_->allocations[i];
    if (row.live.load(std::memory_order_relaxed) != 0 && row.device == device) {
      taken.emplace_back(row.first_unit, row.first_unit + row.units);
    }
  }
  std::sort(taken.begin(), taken.end());
  taken.emplace_back(header_->range_units, header_->range_units);
  for (const std::uint64_t from : {header_->search_from[device], std::uint64_t{0}}) {
    std::uint64_t begin = from;
    for (const auto& [first, end] : taken) {
      if (first >= begin && first - begin >= units) return begin;
      begin = std::max(begin, end);
    }
  }
  return std::nullopt;
}

// The mutex is held. A client whose companion was killed has no place any more; its slot may be
// somebody else's by now.
void Machine::expect_place(const char* call) const {
  const ProcessRow& row = header_->processes[ticket_.slot];
  if (row.alive != 0 && row.generation == ticket_.generation && process_lives(ticket_.slot)) return;
  throw Error(ErrorCode::kDeviceError,
              std::string(call) + ": device lost (the companion process has ended).");
}

std::optional<Piece> Machine::allocate(std::uint32_t device, std::size_t size_bytes) {
  const std::uint64_t units = units_of(size_bytes);
  const MachineLock lock(*this);
  expect_place("try_allocate");
  if (units > header_->capacity_units - header_->used_units[device]) drop_dead();
  if (units > header_->capacity_units - header_->used_units[device]) return std::nullopt;
  const auto room = find_room(device, units);
  AllocationRow* const row = room ? free_row() : nullptr;
  if (row == nullptr) return std::nullopt;
  ++row->generation;
  row->device = device;
  row->first_unit = *room;
  row->units = units;
  row->owner = ticket_.slot;
  row->owner_generation = ticket_.generation;
  row->freed_by_owner = 0;
  std::fill(std::begin(row->holders), std::end(row->holders), 0);
  set_holder(*row, ticket_.slot, true);
  row->live.store(1, std::memory_order_release);
  header_->used_units[device] += units;
  header_->search_from[device] = *room + units;
  return piece_of(*row);
}

// Nobody holds the row: its memory goes back. Punching before `live` goes down means that a death
// in between leaves a row without holders, which repair() gives back again.
void Machine::give_back(AllocationRow& row) {
  const Piece piece = piece_of(row);
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(piece.file_offset), static_cast<off_t>(piece.size_bytes));
  row.live.store(0, std::memory_order_release);
  header_->used_units[row.device] -= row.units;
}

void Machine::release(const Piece& piece) {
  const MachineLock lock(*this);
  AllocationRow& row = header_->allocations[piece.index];
  if (row.live.load(std::memory_order_relaxed) == 0 || row.generation != piece.generation) return;
  if (header_->processes[ticket_.slot].generation != ticket_.generation) return;
  set_holder(row, ticket_.slot, false);
  if (row.owner == ticket_.slot && row.owner_generation == ticket_.generation) {
    row.freed_by_owner = 1;
  }
  if (!held_by_anyone(row)) give_back(row);
}

MemoryHandle Machine::handle(const Piece& piece) {
  HandleFields fields;
  fields.machine = header_->id;
  fields.generation = piece.generation;
  fields.owner_generation = ticket_.generation;
  fields.index = piece.index;
  fields.owner = ticket_.slot;
  MemoryHandle result;
  std::memcpy(result.bytes.data(), &fields, sizeof(fields));
  return result;
}

Piece Machine::open(const MemoryHandle& handle) {
  HandleFields fields;
  std::memcpy(&fields, handle.bytes.data(), sizeof(fields));
  if (handle.kind != HandleKind::kRuntimeIpc || fields.magic != kHandleMagic ||
      fields.index >= kMaxAllocations || fields.owner >= kMaxProcesses) {
    refuse_open("invalid argument", "these bytes are no handle of a simulated device");
  }
  if (fields.machine != header_->id) {
    refuse_open("invalid resource handle", "it was made on another simulated machine");
  }
  if (fields.owner == ticket_.slot && fields.owner_generation == ticket_.generation) {
    refuse_open("invalid device context", "this process made the memory itself");
  }
  const MachineLock lock(*this);
  expect_place("open_memory");
  AllocationRow& row = header_->allocations[fields.index];
  if (row.live.load(std::memory_order_relaxed) == 0 || row.generation != fields.generation ||
      row.freed_by_owner != 0) {
    refuse_open("invalid resource handle", "the memory was freed");
  }
  const ProcessRow& owner = header_->processes[row.owner];
  if (owner.alive == 0 || owner.generation != row.owner_generation || !process_lives(row.owner)) {
    refuse_open("invalid resource handle", "the process that made it has ended");
  }
  set_holder(row, ticket_.slot, true);
  return piece_of(row);
}

void Machine::drop_process(std::uint32_t slot) {
  for (std::uint32_t i = 0; i < header_->allocation_rows_used; ++i) {
    AllocationRow& row = header_->allocations[i];
    if (row.live.load(std::memory_order_relaxed) == 0) continue;
    if (row.owner == slot) row.freed_by_owner = 1;
    if (!holds(row, slot)) continue;
    set_holder(row, slot, false);
    if (!held_by_anyone(row)) give_back(row);
  }
  header_->processes[slot].alive = 0;
}

void Machine::drop_dead() {
  for (std::uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    if (header_->processes[slot].alive != 0 && !process_lives(slot)) drop_process(slot);
  }
}

// Somebody died under the mutex. Rows are whole (see the head of sim_machine.h); what is derived
// from them is computed again.
void Machine::repair() {
  std::fill(std::begin(header_->used_units), std::end(header_->used_units), 0);
  for (std::uint32_t i = 0; i < header_->allocation_rows_used; ++i) {
    const AllocationRow& row = header_->allocations[i];
    if (row.live.load(std::memory_order_relaxed) != 0) {
      header_->used_units[row.device] += row.units;
    }
  }
  for (std::uint32_t i = 0; i < header_->allocation_rows_used; ++i) {
    AllocationRow& row = header_->allocations[i];
    if (row.live.load(std::memory_order_relaxed) != 0 && !held_by_anyone(row)) give_back(row);
  }
}

}  // namespace limbo::sim
