// A name: a symbolic link in a folder that processes share, and a lock beside it.
//
// What ipc/names.cpp does with the folder, as functions over a policy, as the rest of this folder
// does it with memory: one operation of the file system, or one question, a call. So the model
// explores them, with a death between any two.
//
// | entry        | from             | to            | who, and how               | why a death is harmless   |
// |--------------|------------------|---------------|----------------------------|---------------------------|
// | the lock     | open             | locked        | anybody: a record lock     | the kernel lets it go     |
// | a new link   | none, or its own | its own       | its maker, locked: symlink | nobody takes it for a     |
// |              |                  |               |                            | name; the next row        |
// |              | a dead maker's   | none          | whoever makes one, locked: | as if it had come before  |
// |              |                  |               | unlink                     |                           |
// | NAME         | none, or a dead  | its taker's   | its taker, locked: rename  | it leads to the dead: the |
// |              | process's        |               | of the new link            | next one takes it         |
// | NAME         | its own          | none          | its owner, locked: unlink  | as if it had come before  |
//
// Looking who lives behind NAME and taking it is two operations, and so is looking whether it is
// one's own and removing it: only the lock makes one of them. Whoever dies with it has changed
// nothing yet, or everything.
#pragma once

#include <cstdint>

#include "ipc/fail_points.h"
#include "ipc/protocol/mistakes.h"

namespace limbo::protocol {

// A policy `Files` is about one NAME and one process, and has
//   bool lock()                 false: another has it for too long
//   void unlock()
//   Link read()                 what NAME is at this moment
//   bool is_there(Link)         not asked of anybody: it is something
//   bool is_own(Link)           neither: it leads to this process
//   bool has_living_owner(Link) what is in doubt is alive
//   void make_new()             the new link; a leftover of one's own says the same
//   void for_each_new(visit)    lists the new links, everybody's, and then calls visit(entry)
//   Link read_new(entry)
//   void remove_new(entry)
//   void put_in_place()         renames it to NAME
//   void remove()               unlinks NAME
// What throws is through with it: the policy's end lets the lock go.

enum class NameVerdict : std::uint8_t {
  kDone,
  kTaken,  // a living process has it, this one perhaps
  kBusy,   // the lock was not to be had: nothing was changed
};

template <class Files>
bool lock_names(Files& files) {
  return makes(Mistake::kNamesUnlocked) || files.lock();
}

template <class Files>
void unlock_names(Files& files) {
  if (!makes(Mistake::kNamesUnlocked)) files.unlock();
}

// What the dead were making. Links of the living are left alone: one may have failed at it.
template <class Files>
void remove_leftovers(Files& files) {
  files.for_each_new([&files](const auto& entry) {
    const auto link = files.read_new(entry);
    if (files.is_there(link) && !files.has_living_owner(link)) files.remove_new(entry);
  });
}

template <class Files>
[[nodiscard]] NameVerdict take_name(Files& files) {
  if (!lock_names(files)) return NameVerdict::kBusy;
  LIMBO_FAIL_POINT("names.after_lock");
  const auto link = files.read();
  const bool taken = files.is_there(link) && files.has_living_owner(link);
  if (!taken) {
    LIMBO_FAIL_POINT("names.after_look");
    remove_leftovers(files);
    files.make_new();
    LIMBO_FAIL_POINT("names.before_rename");
    files.put_in_place();
  }
  unlock_names(files);
  return taken ? NameVerdict::kTaken : NameVerdict::kDone;
}

// Another's by now: nothing is left to be given up.
template <class Files>
[[nodiscard]] NameVerdict give_up_name(Files& files) {
  if (!lock_names(files)) return NameVerdict::kBusy;
  if (files.is_own(files.read())) {
    LIMBO_FAIL_POINT("names.before_unlink");
    files.remove();
  }
  unlock_names(files);
  return NameVerdict::kDone;
}

}  // namespace limbo::protocol
