// Names: what a process does with the folder that they lie in (ipc/names.cpp, by protocol/names.h).
//
// The folder is a word for its lock, one for NAME, and one for each process's new link. An operation
// of the file system is one step, and so is the question whether somebody lives. A lock is a process's
// and a thread's at once: with the product it is two, taken by who has both.
#include "ipc/protocol/names.h"

#include "tests/model/run.h"

namespace limbo::model {
namespace {

using protocol::NameVerdict;

constexpr std::uint8_t bit(std::uint32_t index) {
  return static_cast<std::uint8_t>(1U << index);
}

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

  Link read() {
    return run_.memory.at_once("read", kName, [&] { return words_[kName]; });
  }
  static bool is_there(Link link) { return link != 0; }
  [[nodiscard]] bool is_own(Link link) const { return link == name_of_process(process_); }
  bool has_living_owner(Link link) {
    const auto look = [&] { return is_found_alive(run_.world, link - 1) ? 1U : 0U; };
    const char* what = look() != 0 ? "somebody lives behind" : "nobody lives behind";
    return run_.memory.at_once(what, kName, look) != 0;
  }

  void make_new() { set("make", new_link_word(process_), name_of_process(process_)); }
  void put_in_place() {
    run_.memory.at_once("rename to", kName, [&] {
      words_[kName] = words_[new_link_word(process_)];
      return words_[new_link_word(process_)] = 0;
    });
  }
  void remove() { set("unlink", kName, 0); }

 private:
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
  return world.words[kNamesLock] == 0 && (link == 0 || is_had);
}

}  // namespace limbo::model
