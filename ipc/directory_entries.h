// What is in a folder.
#pragma once

#include <dirent.h>
#include <fcntl.h>

#include <memory>
#include <string>

#include "ipc/owned_fd.h"

namespace limbo {

// Calls `visit` with the name of each; of none where the folder cannot be read. What `visit` throws
// ends it.
template <typename Visitor>
void for_each_entry(int folder, Visitor&& visit) {
  struct Close {
    void operator()(DIR* listing) const noexcept { ::closedir(listing); }
  };
  OwnedFd copy(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy.valid()) return;
  const std::unique_ptr<DIR, Close> listing(::fdopendir(copy.get()));
  if (!listing) return;
  (void)copy.release();  // the listing's
  while (const dirent* entry = ::readdir(listing.get())) visit(std::string(entry->d_name));
}

}  // namespace limbo
