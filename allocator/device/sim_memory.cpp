#include "allocator/device/sim_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "allocator/error.h"

namespace limbo::sim {

namespace {

std::string hexadecimal(const void* pointer) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (auto value = reinterpret_cast<std::uintptr_t>(pointer); value != 0; value /= 16) {
    text.insert(text.begin(), kDigits[value % 16]);
  }
  return "0x" + (text.empty() ? "0" : text);
}

}  // namespace

Memory::~Memory() {
  for (const auto& [base, mapping] : mappings_) {
    ::munmap(reinterpret_cast<void*>(base), mapping.piece.size_bytes);
  }
}

// At an address aligned to 2 MiB: a reservation one unit too large is cut at both ends.
void* Memory::map(const Piece& piece) {
  const std::size_t size = piece.size_bytes;
  void* const reserved = ::mmap(nullptr, size + kUnitBytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t base = (first + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  void* const mapped =
      ::mmap(reinterpret_cast<void*>(base), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             machine_.fd(), static_cast<off_t>(piece.file_offset));
  if (mapped == MAP_FAILED) {
    ::munmap(reserved, size + kUnitBytes);
    return nullptr;
  }
  if (base != first) ::munmap(reserved, base - first);
  if (const std::size_t rest = kUnitBytes - (base - first); rest != 0) {
    ::munmap(reinterpret_cast<void*>(base + size), rest);
  }
  ::madvise(mapped, size, MADV_DONTFORK);
  return mapped;
}

void* Memory::allocate(int device, std::uint32_t machine_device, std::size_t size_bytes) {
  const auto piece = machine_.allocate(machine_device, size_bytes);
  if (!piece) return nullptr;
  void* const base = map(*piece);
  if (base == nullptr) {
    machine_.release(*piece);
    throw Error(ErrorCode::kDeviceError,
                std::string("try_allocate: mapping failed: ") + std::strerror(errno) + ".");
  }
  const std::lock_guard lock(mutex_);
  mappings_[reinterpret_cast<std::uintptr_t>(base)] = {*piece, device, false, 0, false, {}};
  return base;
}

Memory::Mappings::iterator Memory::find(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return mappings_.end();
  --after;
  return address - after->first < after->second.piece.size_bytes ? after : mappings_.end();
}

Memory::Mapping& Memory::expect(const char* call, int device, const void* base, bool opened) {
  const auto found = mappings_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == mappings_.end() || found->second.leaving || found->second.opened != opened ||
      found->second.device != device) {
    throw Error(ErrorCode::kDeviceError,
                std::string(call) + ": invalid argument (" + hexadecimal(base) + " is not " +
                    (opened ? "an opened mapping" : "an allocation") + " of device " +
                    std::to_string(device) + " in this process).");
  }
  return found->second;
}

const void* Memory::base_of(const void* pointer) {
  const auto found = find(pointer);
  return found == mappings_.end() ? pointer : reinterpret_cast<const void*>(found->first);
}

DriverAllocation Memory::allocation(int device, const void* pointer) {
  const std::lock_guard lock(mutex_);
  const void* const base = base_of(pointer);
  const Mapping& mapping = expect("driver_allocation", device, base, false);
  return {const_cast<void*>(base), mapping.piece.size_bytes};
}

MemoryHandle Memory::handle(int device, const void* pointer) {
  Piece piece;
  {
    const std::lock_guard lock(mutex_);
    piece = expect("export_memory", device, base_of(pointer), false).piece;
  }
  return machine_.handle(piece);
}

void* Memory::open(int device, const MemoryHandle& handle) {
  const std::lock_guard lock(mutex_);
  for (auto& [base, mapping] : mappings_) {
    if (mapping.opened && !mapping.leaving && mapping.device == device &&
        mapping.handle == handle) {
      ++mapping.opens;
      return reinterpret_cast<void*>(base);
    }
  }
  const Piece piece = machine_.open(handle);
  void* const base = map(piece);
  if (base == nullptr) {
    machine_.release(piece);
    throw Error(ErrorCode::kDeviceError,
                std::string("open_memory: mapping failed: ") + std::strerror(errno) + ".");
  }
  mappings_[reinterpret_cast<std::uintptr_t>(base)] = {piece, device, true, 1, false, handle};
  return base;
}

void* Memory::begin_free(int device, void* base) {
  const std::lock_guard lock(mutex_);
  expect("free", device, base, false).leaving = true;
  return base;
}

void* Memory::begin_close(int device, void* base) {
  const std::lock_guard lock(mutex_);
  Mapping& mapping = expect("close_memory", device, base, true);
  if (--mapping.opens > 0) return nullptr;
  mapping.leaving = true;
  return base;
}

void Memory::end_removal(void* base) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(reinterpret_cast<std::uintptr_t>(base));
  const Piece piece = found->second.piece;
  mappings_.erase(found);
  ::munmap(base, piece.size_bytes);
  // Another device's mapping of the same piece shares this process's one reference.
  for (const auto& [other, mapping] : mappings_) {
    if (mapping.piece.index == piece.index && mapping.piece.generation == piece.generation) return;
  }
  machine_.release(piece);
}

std::optional<std::uint64_t> Memory::file_offset(int device, const void* data,
                                                 std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = find(data);
  if (found == mappings_.end()) return std::nullopt;
  const Mapping& mapping = found->second;
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(data) - found->first;
  if (size_bytes > mapping.piece.size_bytes - offset) return std::nullopt;
  if (device >= 0 && mapping.device != device) return std::nullopt;
  return mapping.piece.file_offset + offset;
}

bool Memory::maps(std::uint64_t file_offset, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  return std::any_of(mappings_.begin(), mappings_.end(), [&](const auto& entry) {
    const Piece& piece = entry.second.piece;
    return file_offset >= piece.file_offset && size_bytes <= piece.size_bytes &&
           file_offset - piece.file_offset <= piece.size_bytes - size_bytes;
  });
}

Memory::Counts Memory::counts() {
  const std::lock_guard lock(mutex_);
  Counts counts;
  for (const auto& [base, mapping] : mappings_)
    ++(mapping.opened ? counts.opened : counts.allocated);
  return counts;
}

}  // namespace limbo::sim
