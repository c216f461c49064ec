#include "tests/tools/killmatrix/driver.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "tests/tools/killmatrix/peer.h"
#include "tests/tools/killmatrix/sabotage.h"

namespace limbo::killmatrix {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kEnoughFindings = 3;
constexpr milliseconds kLongestStep{20};

}  // namespace

Driver::Driver(const Options& options, Arena& arena)
    : options_(options),
      arena_(arena),
      post_(options.producers + options.consumers + 2 * options.spares),
      random_(options.seed),
      slots_(options.producers + options.consumers + 2 * options.spares) {
  // Fork children, and the processes that simulate a GPU, become this one's to wait for.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw std::runtime_error("no subreaper");
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &mask, nullptr);
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) throw std::runtime_error("no signalfd");
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    slots_[i].plan.slot = i;
    slots_[i].plan.role =
        i < options.producers + options.spares ? Role::kProducer : Role::kConsumer;
  }
}

Driver::~Driver() {
  for (const Slot& slot : slots_) {
    if (slot.pid > 0) ::kill(slot.pid, SIGKILL);
  }
  for (const Orphan& orphan : orphans_) ::kill(orphan.pid, SIGKILL);
}

// ---- births -----------------------------------------------------------------------------------

void Driver::give_birth(Slot& slot) {
  const std::uint32_t index = slot.plan.slot;
  const Role role = slot.plan.role;
  slot = Slot{};
  slot.plan = draw_plan(options_, random_, role, result_.killed_at.data());
  slot.plan.slot = index;
  slot.plan.incarnation = next_incarnation_++;
  SlotPage& page = arena_.slots[index];
  page.incarnation.store(slot.plan.incarnation);
  if (options_.spares != 0) page.gets_mail.store(false);
  fork_into(slot, &live);
  if (slot.plan.end == End::kKilledYoung) slot.die_at = Clock::now() + slot.plan.lifetime;
}

void Driver::fork_into(Slot& slot, void (*life)(const Birth&)) {
  SlotPage& page = arena_.slots[slot.plan.slot];
  page.busy_since_us.store(0);
  page.helper_busy_since_us.store(0);
  page.fork_child.store(0);
  page.context_lost.store(false);
  page.may_fail.store(slot.plan.fail_points.find("=error") != std::string::npos);
  page.has_flooded.store(false);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error(std::string("socketpair: ") + std::strerror(errno));
  }
  slot.control.reset(ends[0]);
  const OwnedFd childs(ends[1]);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (pid == 0) {
    Birth birth{slot.plan,
                &arena_,
                &post_,
                ends[1],
                static_cast<std::uint32_t>(slots_.size()),
                options_.deadline / 2};
    for (Slot& other : slots_) other.control.reset();
    signals_.reset();
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    life(birth);
  }
  slot.pid = pid;
}

void Driver::give_birth_to_all() {
  for (Slot& slot : slots_) {
    if (slot.pid == 0) give_birth(slot);
  }
}

// Whoever is dying makes room before it is dead: that takes its time, where it had a GPU.
bool Driver::is_dying(const Slot& slot) const {
  return arena_.slots[slot.plan.slot].ending.load() == slot.plan.incarnation;
}

void Driver::give_turns() {
  for (const Role role : {Role::kProducer, Role::kConsumer}) {
    std::uint32_t wanted = role == Role::kProducer ? options_.producers : options_.consumers;
    std::vector<Slot*> waiting;
    for (Slot& slot : slots_) {
      if (slot.pid == 0 || slot.plan.role != role || is_dying(slot)) continue;
      if (slot.acts) {
        wanted -= wanted != 0 ? 1 : 0;
      } else if (slot.ready) {
        waiting.push_back(&slot);
      }
    }
    for (; wanted != 0 && !waiting.empty(); --wanted) {
      const std::size_t index = random_.below(waiting.size());
      give_turn(*waiting[index]);
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
}

void Driver::give_turn(Slot& slot) {
  slot.acts = true;
  arena_.slots[slot.plan.slot].gets_mail.store(true);
  slot.die_at = Clock::now() + slot.plan.lifetime;
  // They end by themselves; this is for those that do not get there.
  if (slot.plan.end == End::kExit || slot.plan.end == End::kLeave || slot.plan.end == End::kExec ||
      slot.plan.end == End::kParent) {
    slot.die_at = Clock::now() + 8 * options_.lifetime;
  }
  tell(slot, 'a');
}

// ---- one step ---------------------------------------------------------------------------------

Driver::Clock::time_point Driver::next_due() const {
  Clock::time_point due = Clock::now() + kLongestStep;
  for (const Slot& slot : slots_) {
    due = std::min(due, slot.resume_at);
    if (killing_ || slot.replaced || slot.doomed) due = std::min(due, slot.die_at);
  }
  for (const Orphan& orphan : orphans_) due = std::min(due, orphan.die_at);
  return due;
}

void Driver::step(milliseconds at_most) {
  std::vector<pollfd> sources{{signals_.get(), POLLIN, 0}};
  for (const Slot& slot : slots_) {
    sources.push_back({slot.replaced ? -1 : slot.control.get(), POLLIN, 0});
  }
  const auto wait = std::chrono::ceil<milliseconds>(next_due() - Clock::now());
  ::poll(sources.data(), sources.size(),
         static_cast<int>(std::clamp(wait, milliseconds(0), at_most).count()));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (sources[i + 1].revents != 0) hear(slots_[i]);
  }
  reap();
  const Clock::time_point now = Clock::now();
  kill_due(now);
  if (births_) give_turns();
  look_for_hangs();
  tell_findings();
}

void Driver::hear(Slot& slot) {
  char text[512];
  const ssize_t got = ::recv(slot.control.get(), text, sizeof(text) - 1, MSG_DONTWAIT);
  if (got < 0) return;
  if (got == 0) {
    // Its end is closed: it is dead, or another program.
    if (!slot.replaced && slot.plan.end == End::kExec) {
      slot.replaced = true;
      slot.owes_answer = false;
      const auto grace = milliseconds(slot.plan.slow_exec ? 2500 : random_.between(0, 20));
      slot.die_at = Clock::now() + grace;
    }
    return;
  }
  text[got] = '\0';
  switch (text[0]) {
    case 'r':
      slot.ready = true;
      break;
    case 'p':
      slot.die_at = Clock::now() + milliseconds(random_.between(0, 8));
      break;
    case 'l':
      slot.doomed = true;
      slot.die_at = Clock::now() + milliseconds(births_ ? random_.between(1, 40) : 0);
      break;
    case 'b':
      if (got > 1) {
        Diary(arena_, slot.plan.slot, slot.plan.incarnation)
            .found(Harm::kNotBack, "not back after %lld ms: %s",
                   static_cast<long long>((options_.deadline / 2).count()), text + 1);
      }
      slot.owes_answer = false;
      break;
    default:
      slot.owes_answer = false;
  }
}

// ---- deaths -----------------------------------------------------------------------------------

void Driver::reap() {
  signalfd_siginfo ignored;
  while (::read(signals_.get(), &ignored, sizeof(ignored)) > 0) {
  }
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG) != 0 || info.si_pid == 0) return;
    std::erase_if(orphans_, [&](const Orphan& orphan) {
      return orphan.pid == info.si_pid && info.si_code != CLD_STOPPED;
    });
    const auto found = std::find_if(slots_.begin(), slots_.end(),
                                    [&](const Slot& slot) { return slot.pid == info.si_pid; });
    if (found == slots_.end()) {  // somebody's child; its pid may be anybody's from now on
      if (info.si_code == CLD_STOPPED) continue;
      for (const Slot& slot : slots_) {
        std::int32_t gone = info.si_pid;
        arena_.slots[slot.plan.slot].fork_child.compare_exchange_strong(gone, 0);
      }
      continue;
    }
    if (info.si_code == CLD_STOPPED) {
      stopped(*found);
    } else {
      ended(*found, info.si_code, info.si_status);
    }
  }
}

void Driver::stopped(Slot& slot) {
  if (slot.killed_by_driver) return;  // it was on its way when it was killed
  ++result_.stopped;
  slot.stopped = true;
  slot.resume_at = Clock::now() + milliseconds(random_.one_in(200) ? 2500 : random_.between(0, 25));
  if (random_.one_in(2)) slot.die_at = std::min(slot.die_at, slot.resume_at);
}

void Driver::ended(Slot& slot, int code, int status) {
  SlotPage& page = arena_.slots[slot.plan.slot];
  Diary diary(arena_, slot.plan.slot, slot.plan.incarnation);
  const Way way = way_of_end(slot, code, status);
  switch (way) {
    case Way::kExit:
    case Way::kExitAtOnce:
      diary.line("has ended by itself");
      break;
    case Way::kAtFailPoint:
      ++result_.killed_at[slot.plan.point];
      break;
    case Way::kUnplanned:
      diary.found(Harm::kOther, "%s %d, and by nobody here",
                  code == CLD_EXITED ? "exited with status" : "died of signal", status);
      break;
    default:  // it has told why itself, or the driver knows
      break;
  }
  if (!slot.leaves) {
    ++result_.kills;
    ++result_.ways[static_cast<std::size_t>(way)];
  }
  page.incarnation.store(0);
  if (const pid_t child = page.fork_child.exchange(0); child > 0) {
    orphans_.push_back({child, Clock::now() + milliseconds(random_.between(0, 80))});
  }
  slot.pid = 0;
  slot.control.reset();
  slot.owes_answer = false;
  slot.die_at = slot.resume_at = Clock::time_point::max();
  for (Slot& other : slots_) {
    if (other.pid != 0 && other.ready && other.plan.role == Role::kProducer) tell(other, 'c');
  }
  if (births_) give_birth(slot);
}

Way Driver::way_of_end(const Slot& slot, int code, int status) {
  const End end = slot.plan.end;
  if (code == CLD_EXITED) {
    const bool planned = slot.leaves || end == End::kExit || end == End::kLeave || slot.plan.exits;
    if (status == 0 && planned) return end == End::kExit ? Way::kExitAtOnce : Way::kExit;
    return status == kCannotGoOn ? Way::kException : Way::kUnplanned;
  }
  if (status != SIGKILL) return Way::kUnplanned;
  if (slot.killed_by_driver) return slot.killed;
  return end == End::kFailPoint ? Way::kAtFailPoint : Way::kUnplanned;
}

void Driver::kill(Slot& slot) {
  SlotPage& page = arena_.slots[slot.plan.slot];
  slot.killed_by_driver = true;
  slot.killed = slot.stopped                 ? Way::kWhileStopped
                : slot.replaced              ? Way::kExec
                : page.context_lost.load()   ? Way::kWithoutContext
                : page.fork_child.load() > 0 ? Way::kBeforeForkChild
                                             : Way::kAtRandom;
  page.ending.store(slot.plan.incarnation);
  slot.die_at = slot.resume_at = Clock::time_point::max();
  ::kill(slot.pid, SIGKILL);
}

void Driver::kill_due(Clock::time_point now) {
  for (Slot& slot : slots_) {
    if (slot.pid == 0) continue;
    if (slot.die_at <= now && (killing_ || slot.replaced || slot.doomed)) kill(slot);
    if (slot.resume_at <= now) {
      slot.resume_at = Clock::time_point::max();
      slot.stopped = false;
      ++result_.continued;
      slot.awake_since_us = now_us();
      ::kill(slot.pid, SIGCONT);
    }
  }
  for (Orphan& orphan : orphans_) {
    if (orphan.die_at > now) continue;
    ::kill(orphan.pid, SIGKILL);  // not reaped yet, so still that child
    orphan.die_at = Clock::time_point::max();
  }
  if (births_ && now >= next_stop_) stop_somebody(now);
}

void Driver::stop_somebody(Clock::time_point now) {
  next_stop_ = now + options_.lifetime * random_.between(1, 4);
  const Slot& slot = slots_[random_.below(slots_.size())];
  if (slot.pid != 0 && slot.acts && !slot.stopped && !slot.replaced) ::kill(slot.pid, SIGSTOP);
}

void Driver::tell(Slot& slot, char verb) {
  (void)::send(slot.control.get(), &verb, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// ---- what is wrong ----------------------------------------------------------------------------

void Driver::look_for_hangs() {
  const std::uint64_t now = now_us();
  const auto patience = static_cast<std::uint64_t>(options_.deadline.count()) * 1000;
  for (Slot& slot : slots_) {
    if (slot.pid == 0 || slot.stopped || slot.replaced || slot.killed_by_driver) continue;
    const SlotPage& page = arena_.slots[slot.plan.slot];
    for (const auto* busy : {&page.busy_since_us, &page.helper_busy_since_us}) {
      const std::uint64_t since = busy->load();
      const std::uint64_t from = std::max(since, slot.awake_since_us);
      if (since == 0 || now <= from || now - from <= patience) continue;
      hang(slot, "in an action");
      break;
    }
  }
}

void Driver::hang(Slot& slot, const char* where) {
  ++result_.hung;
  std::fprintf(stderr, "hung: process %u (pid %d, incarnation %u) %s; %s\n%s", slot.plan.slot,
               slot.pid, slot.plan.incarnation, where, describe(slot.plan).c_str(),
               last_lines(arena_, slot.plan.slot, 30).c_str());
  slot.owes_answer = false;
  kill(slot);
  slot.killed = Way::kHung;
}

void Driver::tell_findings() {
  while (findings_told_ < arena_.findings.size()) {
    const Finding& finding = arena_.findings[findings_told_];
    const auto harm = static_cast<Harm>(finding.harm.load(std::memory_order_acquire));
    if (harm == Harm::kNone) return;
    ++findings_told_;
    const Slot& slot = slots_[finding.slot % slots_.size()];
    const std::string what =
        harm == Harm::kEarly ? "early" : "lost (" + std::string(name_of(harm)) + ")";
    std::fprintf(stderr, "%s: process %u, incarnation %u: %s\n  it is a %s\n%s", what.c_str(),
                 finding.slot, finding.incarnation, finding.text.data(),
                 describe(slot.plan).c_str(), last_lines(arena_, finding.slot, 40).c_str());
  }
}

// A mistake may do other harm on the way to its own.
bool Driver::enough() const {
  if (result_.kills >= options_.kills) return true;
  const Harm harm = sabotage_of(options_.sabotage).harm;
  const std::uint64_t found = arena_.early() + arena_.lost() + result_.hung;
  if (!options_.sabotage.empty() && harm != Harm::kNone) {
    if (arena_.count(harm) != 0) return true;
  } else if (found >= (options_.sabotage.empty() ? kEnoughFindings : 1)) {
    return true;
  }
  return options_.at_most && Clock::now() - started_ >= *options_.at_most;
}

Result Driver::run() {
  give_birth_to_all();
  while (!enough()) {
    step(kLongestStep);
    if (result_.kills - killed_at_last_settle_ >= options_.settle_every) {
      settle(result_.settled % 4 == 3);
    }
  }
  settle(true);
  end_all();
  return result_;
}

}  // namespace limbo::killmatrix
