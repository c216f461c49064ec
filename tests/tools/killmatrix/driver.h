// The process that is never killed: it gives birth, kills, and counts.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/fail_points.h"
#include "ipc/owned_fd.h"
#include "tests/tools/killmatrix/arena.h"
#include "tests/tools/killmatrix/mail.h"
#include "tests/tools/killmatrix/options.h"
#include "tests/tools/killmatrix/plan.h"
#include "tests/tools/killmatrix/ways.h"

namespace limbo::killmatrix {

struct Birth;

struct Result {
  std::uint64_t kills = 0;  // processes that have ended, in whatever way, before all are told to
  std::uint64_t hung = 0;
  std::array<std::uint64_t, kFailPointCount> killed_at{};
  std::array<std::uint64_t, kWays> ways{};  // of `kills`
  std::uint64_t stopped = 0;                // by SIGSTOP
  std::uint64_t continued = 0;              // of those, by SIGCONT
  std::uint64_t settled = 0;                // how often the balance was looked at
};

class Driver {
 public:
  // Uses nothing of Limbo itself: its children are new processes.
  Driver(const Options& options, Arena& arena);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Until enough were killed, or the time is over, or enough was found: of a sabotage, the harm that
  // it must do.
  Result run();

 private:
  using Clock = std::chrono::steady_clock;

  // Who has the place now.
  struct Slot {
    Plan plan;
    pid_t pid = 0;  // 0: nobody
    OwnedFd control;
    bool ready = false;
    bool acts = false;  // it has had its turn
    bool stopped = false;
    bool replaced = false;  // it is another program now
    bool doomed = false;    // it gives nothing back any more
    bool killed_by_driver = false;
    Way killed = Way::kAtRandom;  // where it was
    bool leaves = false;          // it was told to
    bool owes_answer = false;     // to what settle asked
    Clock::time_point die_at = Clock::time_point::max();
    Clock::time_point resume_at = Clock::time_point::max();
    std::uint64_t awake_since_us = 0;
  };
  struct Orphan {  // a fork child whose parent was killed
    pid_t pid = 0;
    Clock::time_point die_at;
  };

  void give_birth(Slot& slot);
  void fork_into(Slot& slot, void (*life)(const Birth&));
  void give_birth_to_all();
  // Those who are ready act, up to as many as are wanted.
  void give_turns();
  void give_turn(Slot& slot);
  [[nodiscard]] bool is_dying(const Slot& slot) const;
  void step(std::chrono::milliseconds at_most);
  void hear(Slot& slot);
  void reap();
  void ended(Slot& slot, int code, int status);
  [[nodiscard]] static Way way_of_end(const Slot& slot, int code, int status);
  void stopped(Slot& slot);
  void kill_due(Clock::time_point now);
  void kill(Slot& slot);
  void stop_somebody(Clock::time_point now);
  void look_for_hangs();
  void hang(Slot& slot, const char* where);
  void tell(Slot& slot, char verb);
  void tell_findings();
  [[nodiscard]] Clock::time_point next_due() const;
  [[nodiscard]] bool enough() const;

  // Everybody gives back, and everything comes back.
  void settle(bool thorough);
  void ask(char verb, const char* where, std::span<Slot> whom);
  void drop_mail();

  // The end: nobody is left, and nothing of them.
  void end_all();
  void await_all(const char* where);
  void await_the_last();

  const Options& options_;
  Arena& arena_;
  Post post_;
  Random random_;
  OwnedFd signals_;
  Result result_;
  std::vector<Slot> slots_;
  std::vector<Orphan> orphans_;
  std::uint32_t next_incarnation_ = 1;
  std::uint32_t findings_told_ = 0;
  std::uint64_t killed_at_last_settle_ = 0;
  bool births_ = true;
  bool killing_ = true;
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_stop_ = Clock::now();
};

}  // namespace limbo::killmatrix
