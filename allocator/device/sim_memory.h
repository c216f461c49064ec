// The device memory that this process has mapped: what it allocated, what it opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "allocator/device/device.h"
#include "allocator/device/sim_machine.h"

namespace limbo::sim {

// Thread-safe. Devices are this process's indices; `machine_device` is the machine's.
class Memory {
 public:
  explicit Memory(Machine& machine) : machine_(machine) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Null when the device has no room.
  [[nodiscard]] void* allocate(int device, std::uint32_t machine_device, std::size_t size_bytes);
  [[nodiscard]] DriverAllocation allocation(int device, const void* pointer);
  [[nodiscard]] MemoryHandle handle(int device, const void* pointer);
  [[nodiscard]] void* open(int device, const MemoryHandle& handle);

  // Freeing and closing wait for the device between these two: begin_* checks, and takes the
  // mapping out of the hands of every other caller; end_removal unmaps and gives it back.
  // begin_close gives 0 when another open of the mapping is left, and nothing is to be removed.
  [[nodiscard]] void* begin_free(int device, void* base);
  [[nodiscard]] void* begin_close(int device, void* base);
  void end_removal(void* base);

  // Where [data, data + size) lies in the machine's file; nothing when it is not all mapped here.
  // `device` not negative: only memory that belongs to that device in this process.
  [[nodiscard]] std::optional<std::uint64_t> file_offset(int device, const void* data,
                                                         std::size_t size_bytes);

  // Whether a range of the machine's file is mapped here.
  [[nodiscard]] bool maps(std::uint64_t file_offset, std::size_t size_bytes);

  struct Counts {
    std::size_t allocated = 0;
    std::size_t opened = 0;
  };
  [[nodiscard]] Counts counts();

 private:
  struct Mapping {
    Piece piece;
    int device = 0;
    bool opened = false;
    int opens = 0;
    bool leaving = false;
    MemoryHandle handle;  // of an opened one
  };
  using Mappings = std::map<std::uintptr_t, Mapping>;

  [[nodiscard]] void* map(const Piece& piece);
  [[nodiscard]] Mappings::iterator find(const void* pointer);
  // Of the mapping that holds it; itself where there is none.
  [[nodiscard]] const void* base_of(const void* pointer);
  Mapping& expect(const char* call, int device, const void* base, bool opened);

  Machine& machine_;
  std::mutex mutex_;  // guards mappings_; a leaf but for the machine's mutex in open()
  Mappings mappings_;
};

}  // namespace limbo::sim
