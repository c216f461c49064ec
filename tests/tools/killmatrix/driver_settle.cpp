// Everybody gives back, and everything comes back; and the end, when nobody is left.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

#include "tests/tools/killmatrix/driver.h"
#include "tests/tools/killmatrix/peer.h"

namespace limbo::killmatrix {

using std::chrono::milliseconds;

void Driver::settle(bool thorough) {
  births_ = false;
  for (Orphan& orphan : orphans_) orphan.die_at = Clock::now();
  for (Slot& slot : slots_) {
    if (slot.pid == 0) continue;
    if (slot.stopped) slot.resume_at = Clock::now();
    // It lives on: its child goes, so that what it gives back can come back.
    if (const pid_t child = arena_.slots[slot.plan.slot].fork_child.load(); child > 0) {
      ::kill(child, SIGKILL);
    }
    if (slot.doomed || (slot.replaced && !slot.plan.slow_exec)) slot.die_at = Clock::now();
  }
  // Now and then the producers go on while the consumers give back.
  const std::span<Slot> all(slots_);
  constexpr const char* kGivingBack = "where it is to give back";
  if (random_.one_in(2)) ask('s', kGivingBack, all.subspan(options_.producers + options_.spares));
  ask('s', kGivingBack, all);
  drop_mail();
  // A death now would hide what does not come back.
  killing_ = false;
  const auto started = Clock::now();
  ask(thorough ? 'B' : 'b', "where everything is to come back", all);
  if (options_.verbose) {
    std::fprintf(stderr,
                 "kills=%llu sends=%llu receives=%llu refusals=%llu checks=%llu orphans=%llu "
                 "oom=%llu stops=%llu settled in %lld ms, %.1f kills/s\n",
                 static_cast<unsigned long long>(result_.kills),
                 static_cast<unsigned long long>(arena_.sends.load()),
                 static_cast<unsigned long long>(arena_.receives.load()),
                 static_cast<unsigned long long>(arena_.refusals.load()),
                 static_cast<unsigned long long>(arena_.checks.load()),
                 static_cast<unsigned long long>(arena_.orphans.load()),
                 static_cast<unsigned long long>(arena_.out_of_memory.load()),
                 static_cast<unsigned long long>(result_.stopped),
                 static_cast<long long>(
                     std::chrono::duration_cast<milliseconds>(Clock::now() - started).count()),
                 static_cast<double>(result_.kills) /
                     std::chrono::duration<double>(Clock::now() - started_).count());
  }
  for (Slot& slot : slots_) {
    if (slot.pid != 0 && !slot.replaced) tell(slot, 'g');
  }
  ++result_.settled;
  killed_at_last_settle_ = result_.kills;
  killing_ = true;
  births_ = true;
  give_birth_to_all();
}

// Who dies meanwhile owes nothing any more.
void Driver::ask(char verb, const char* where, std::span<Slot> whom) {
  const auto until = Clock::now() + options_.deadline;
  for (Slot& slot : whom) {
    if (slot.pid == 0 || slot.replaced) continue;
    slot.owes_answer = true;
    tell(slot, verb);
  }
  const auto owes = [](const Slot& slot) { return slot.pid != 0 && slot.owes_answer; };
  while (std::any_of(slots_.begin(), slots_.end(), owes)) {
    step(milliseconds(20));
    if (Clock::now() < until) continue;
    for (Slot& slot : slots_) {
      if (owes(slot)) hang(slot, where);
    }
  }
}

void Driver::drop_mail() {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    while (post_.take(slot)) {
    }
  }
}

void Driver::end_all() {
  births_ = false;
  for (Slot& slot : slots_) {
    if (slot.pid == 0 || slot.replaced) continue;
    slot.leaves = true;
    slot.die_at = Clock::time_point::max();
    tell(slot, 'q');
  }
  for (Slot& slot : slots_) {
    if (slot.replaced) slot.die_at = Clock::now();
  }
  for (Orphan& orphan : orphans_) orphan.die_at = Clock::now();
  await_all("at its exit");
  await_the_last();

  slots_.resize(1);
  Slot& last = slots_.front();
  last = Slot{};
  last.leaves = true;
  fork_into(last, &live_last);
  await_all("as the last one");
  await_the_last();
  tell_findings();
}

void Driver::await_all(const char* where) {
  const auto until = Clock::now() + options_.deadline;
  const auto lives = [](const Slot& slot) { return slot.pid != 0; };
  while (std::any_of(slots_.begin(), slots_.end(), lives)) {
    step(milliseconds(20));
    if (Clock::now() < until) continue;
    for (Slot& slot : slots_) {
      if (lives(slot)) hang(slot, where);
    }
  }
}

// Fork children that are dead by now, and the processes that were their GPUs.
void Driver::await_the_last() {
  const auto until = Clock::now() + options_.deadline;
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0) return;  // no child is left
    if (info.si_pid != 0) continue;
    if (Clock::now() >= until) break;
    std::this_thread::sleep_for(milliseconds(1));
  }
  Diary(arena_, 0, 0).found(Harm::kOther, "processes are left that should have ended");
}

}  // namespace limbo::killmatrix
