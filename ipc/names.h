// Names: what one process publishes and others find.
//
// In a runtime directory, names/NAME is a symbolic link to the socket of the process that publishes
// NAME. Links are made, replaced and removed under a record lock on names/.lock, in the steps of
// protocol/names.h:
//
// | rule                                            | why                                         |
// |-------------------------------------------------|---------------------------------------------|
// | an fcntl record lock, not flock                 | a fork child of a dead holder keeps a flock |
// | the file is opened once and never closed        | closing any descriptor of it would unlock   |
// | it is never removed                             | two processes would lock two files          |
// | a mutex as well                                 | a record lock is the process's, not the     |
// |                                                 | thread's                                    |
// | a new link is made under a name of its maker's  | whoever looks up a name, without the lock,  |
// | and renamed                                     | sees the old one or the new one             |
// | only what still points to oneself is removed    | it may be another's by now                  |
//
// Dead is a link whose socket is not there, is refused, or whose listener has ended: it is passed
// over, and replaced by whoever wants the name. Anything else has a living owner. A death at any
// point leaves a dead link, a link under a maker's own name (which goes when the next one publishes), or
// nothing; the kernel lets go of the lock.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/layout.h"
#include "ipc/owned_fd.h"
#include "ipc/runtime_directory.h"
#include "ipc/sharing.h"

namespace limbo {

inline constexpr std::size_t kMaxNameBytes = 200;

// Throws kBadArgument for what cannot be a NAME: empty, longer than 200 bytes, with '/' or a zero
// byte in it, or with '.' at its beginning.
void check_name(std::string_view name);

// The names of this process, in its own runtime directory.
class OwnNames {
 public:
  // Makes names/ and its lock. Throws kNoChannel.
  OwnNames(const RuntimeDirectory& directory, const Incarnation& own);
  OwnNames(const OwnNames&) = delete;
  OwnNames& operator=(const OwnNames&) = delete;

  // Throws kNameTaken, with who, where a living process has it; this one too. kBusy when the lock
  // is not to be had within 2 s. kNoChannel when the link cannot be made.
  void add(const std::string& name);
  // Removes the link if it still leads to this process. Throws kBusy and kNoChannel.
  void remove(const std::string& name);

 private:
  class Files;

  [[nodiscard]] std::string target() const;

  const RuntimeDirectory& directory_;
  const Incarnation own_;
  OwnedFd names_;     // the folder
  OwnedFd lock_;      // opened once
  std::mutex mutex_;  // held with the record lock; nothing but the file system is called under it
};

// Who publishes `name`, in any runtime directory; the first of the search that is alive. Locks
// nothing. Throws kBadArgument for what is no name.
[[nodiscard]] std::optional<LendingProcess> look_up_name(const std::string& name);

// Every name that a living process publishes, in the order of the search, then by name; one that an
// earlier directory has too is left out, as look_up_name would not find it.
[[nodiscard]] std::vector<PublishedName> list_names();

}  // namespace limbo
