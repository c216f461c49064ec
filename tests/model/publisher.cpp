// Names: what a process does with the folder that they lie in (ipc/names.cpp, by protocol/names.h).
//
// The folder is a word for its lock, one for NAME, and one for each process's new link. An operation
// of the file system is one step, and so is the question whether somebody lives. A lock is a process's
// and a thread's at once: with the product it is two, taken by who has both.
#include "ipc/protocol/names.h"

#include <utility>

#include "tests/model/run.h"

namespace limbo::model {
namespace {

using protocol::NameVerdict;

// Of a process that ends the socket is closed before its threads are over.
bool is_found_alive(const World& world, std::uint32_t process) {
  const Process& state = world.own.processes[process];
  return !state.gone && !state.closed;
}

class Files {
 public:
  using Link = std::uint32_t;

  explicit Files(const Run& run)
      : words_(run.world.words), run_(run), process_(run.script().process) {}

  // Time passes as it likes: whoever meets a holder may have waited for long enough at once.
  bool lock() {
    const auto take = [&] {
      if (words_[kNamesLock] != 0) return 0U;
      return words_[kNamesLock] = name_of_process(process_);
    };
    const char* what = words_[kNamesLock] == 0 ? "take" : "do not wait for";
    return run_.memory.at_once(what, kNamesLock, take) != 0;
  }
  void unlock() { set("let go", kNamesLock, 0); }

  Link read() { return get(kName); }
  static bool is_there(Link link) { return link != 0; }
  [[nodiscard]] bool is_own(Link link) const { return link == name_of_process(process_); }
  bool has_living_owner(Link link) {
    const auto look = [&] { return is_found_alive(run_.world, link - 1) ? 1U : 0U; };
    const char* what = look() != 0 ? "its owner lives" : "its owner is dead";
    return run_.memory.at_once(what, kNowhere, look) != 0;
  }

  void make_new() { set("make", new_link_word(process_), name_of_process(process_)); }
  template <class Visit>
  void for_each_new(Visit&& visit) {
    const std::uint32_t listed = run_.memory.at_once("list the new links", kNowhere, [&] {
      std::uint32_t there = 0;
      for (std::uint32_t process = 0; process <= kLeases; ++process) {
        if (words_[new_link_word(process)] != 0) there |= 1U << process;
      }
      return there;
    });
    for (std::uint32_t process = 0; process <= kLeases; ++process) {
      if ((listed >> process & 1U) != 0) visit(process);
    }
  }
  Link read_new(std::uint32_t process) { return get(new_link_word(process)); }
  void remove_new(std::uint32_t process) { set("unlink", new_link_word(process), 0); }
  // Where there is nothing to be renamed it fails: NAME stays what it is.
  void put_in_place() {
    run_.memory.at_once("rename to", kName, [&] {
      const std::uint32_t link = std::exchange(words_[new_link_word(process_)], 0);
      if (link != 0) words_[kName] = link;
      return 0U;
    });
  }
  void remove() { set("unlink", kName, 0); }

 private:
  Link get(Word word) {
    return run_.memory.at_once("read", word, [&] { return words_[word]; });
  }
  void set(const char* what, Word word, std::uint32_t value) {
    run_.memory.at_once(what, word, [&] { return words_[word] = value; });
  }

  std::array<std::uint32_t, kWords>& words_;
  const Run& run_;
  const std::uint32_t process_;
};

}  // namespace

void run_publisher(const Run& run) {
  Files files(run);
  Truth& truth = run.own().truth;
  const std::uint8_t own = bit(run.script().process);
  if (run.step().op == Op::kTakeName) {
    if (protocol::take_name(files) == NameVerdict::kDone) truth.named |= own;
    return run.next();
  }
  if (run.step().op == Op::kCloseSocket) {
    run.memory.await(true);
    run.own().processes[run.script().process].closed = true;
    return run.next();
  }
  if (run.head().phase == Phase::kBegin) {
    if ((truth.named & own) == 0) return run.next();
    // From here on it no longer matters to this process who has it.
    truth.named = static_cast<std::uint8_t>(truth.named & ~own);
    return run.go(Phase::kInside);
  }
  if (protocol::give_up_name(files) == NameVerdict::kBusy) truth.named |= own;
  run.next();
}

void let_go_names_lock(World& world, std::uint32_t process) {
  std::uint32_t& lock = world.words[kNamesLock];
  if (lock == name_of_process(process)) lock = 0;
}

bool name_is_kept(const World& world) {
  for (std::uint32_t process = 0; process <= kLeases; ++process) {
    if ((world.own.truth.named & bit(process)) == 0 || !is_found_alive(world, process)) continue;
    if (world.words[kName] != name_of_process(process)) return false;
  }
  return true;
}

bool name_is_over(const World& world) {
  const std::uint32_t link = world.words[kName];
  const bool is_had =
      link != 0 && is_found_alive(world, link - 1) && (world.own.truth.named & bit(link - 1)) != 0;
  bool unfinished = false;
  for (std::uint32_t process = 0; process <= kLeases; ++process) {
    unfinished |= world.words[new_link_word(process)] != 0;
  }
  // What the dead were making stays until somebody takes a name.
  return world.words[kNamesLock] == 0 && (is_had || (link == 0 && !unfinished));
}

}  // namespace limbo::model
