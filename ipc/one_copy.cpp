#include "ipc/one_copy.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "allocator/error.h"

// The mark: an ELF note (owner "Limbo", type 1), which the loader maps with the library.
__asm__(
    ".pushsection .note.limbo,\"a\",%note\n"
    ".balign 4\n"
    ".long 6, 4, 1\n"
    ".asciz \"Limbo\"\n"
    ".balign 4\n"
    ".long 1\n"
    ".popsection\n");

namespace limbo {
namespace {

constexpr char kNoteOwner[] = "Limbo";

struct Copies {
  std::string first;  // the path of the copy that was loaded first
  std::string own;
  bool is_first = true;
};

bool has_mark(const dl_phdr_info& object) noexcept {
  for (std::size_t index = 0; index < object.dlpi_phnum; ++index) {
    const ElfW(Phdr)& part = object.dlpi_phdr[index];
    if (part.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(object.dlpi_addr + part.p_vaddr);
    const char* const end = at + part.p_memsz;
    const std::size_t alignment = part.p_align == 8 ? 8 : 4;
    const auto rounded = [&](std::size_t size) {
      return (size + alignment - 1) / alignment * alignment;
    };
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
      const char* owner = at + sizeof(note);
      if (note.n_namesz == sizeof(kNoteOwner) && owner + sizeof(kNoteOwner) <= end &&
          std::memcmp(owner, kNoteOwner, sizeof(kNoteOwner)) == 0) {
        return true;
      }
      at = owner + rounded(note.n_namesz) + rounded(note.n_descsz);
    }
  }
  return false;
}

bool holds_this_code(const dl_phdr_info& object) noexcept {
  const auto here = reinterpret_cast<std::uintptr_t>(&kNoteOwner);
  for (std::size_t index = 0; index < object.dlpi_phnum; ++index) {
    const ElfW(Phdr)& part = object.dlpi_phdr[index];
    const std::uintptr_t start = object.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && here >= start && here < start + part.p_memsz) return true;
  }
  return false;
}

// Objects are visited in the order in which they were loaded.
int visit(dl_phdr_info* object, std::size_t, void* data) {
  auto& copies = *static_cast<Copies*>(data);
  if (!has_mark(*object)) return 0;
  const char* name = *object->dlpi_name == '\0' ? "the program" : object->dlpi_name;
  if (holds_this_code(*object)) {
    copies.own = name;
    copies.is_first = copies.first.empty();
    return 1;
  }
  if (copies.first.empty()) copies.first = name;
  return 0;
}

}  // namespace

void check_only_copy() {
  Copies copies;
  ::dl_iterate_phdr(visit, &copies);
  if (copies.is_first) return;
  throw Error(ErrorCode::kAlreadyInUse,
              "Two copies of Limbo are loaded into this process: " + copies.first +
                  " first, then " + copies.own + ".",
              "Load one of them only.");
}

}  // namespace limbo
