// A background thread of the library: waits for descriptors, for tasks from other threads, and for
// deadlines. Four of them exist in a process that shares:
//
// | thread         | does                                        | may wait for              |
// |----------------|---------------------------------------------|---------------------------|
// | limbo-reaper   | connections, deaths, completing waits of the| nothing; no device call   |
// |                | dead                                        |                           |
// | limbo-worker   | sweeps, collects, time limits               | what recording an event   |
// |                |                                             | waits for                 |
// | limbo-releaser | late releases; strikes off what has landed  | what a launch waits for   |
// | limbo-unmapper | closes mappings; releases that wait for an  | kernels                   |
// |                | idle device                                 |                           |
//
// The reaper makes no device call at all: a host thread of the program may be stuck in the driver
// behind the very wait that the reaper has to complete.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace limbo {

class ServiceThread {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;
  // Called in every round; returns when it wants to be called next at the latest, or nothing.
  using Periodic = std::function<std::optional<Clock::time_point>(Clock::time_point now)>;

  // How long whoever could not watch a descriptor looks at it by itself before trying again.
  static constexpr std::chrono::milliseconds kWatchAgain{20};

  // Starts the thread, all signals blocked. Throws kInternal when it cannot be started. `name`: at
  // most 15 characters.
  explicit ServiceThread(const std::string& name);
  // Stops and joins it: tasks that were posted before are run.
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

  // Runs `task` on the thread, in the order of posting. Never blocks. Callable from anywhere.
  // Tasks, periodics and handlers run with no lock of this class held. An Error that escapes them
  // is dropped: they report in their own way. A periodic that failed is called again soon.
  void post(Task task);

  // Has the periodics called soon. One system call at most; none when the thread is awake anyway.
  void ring();

  // The same, and only where the thread sleeps without a deadline: one load where it does not. For
  // whoever has just made work for a periodic that said "nothing"; work and looking for it are
  // under one mutex, so that either the periodic sees the work or this call sees it asleep.
  void nudge();

  // ---- on the thread itself (post from anywhere else) ----------------------------------------

  // Calls `handler` whenever `fd` is readable or its other end is closed, until unwatch(fd).
  // Whoever owns fd calls unwatch before closing it. Throws kInternal where the kernel takes no more
  // (a user's watches are counted); then nothing is watched.
  void watch(int fd, Task handler);
  // The same, and only when its other end is closed: what somebody writes into it wakes nobody.
  void watch_hangup(int fd, Task handler);
  void unwatch(int fd);
  void add_periodic(Periodic periodic);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs `task` on a thread, behind what was posted before, and waits for it. Not to be called on it.
void run_and_wait(ServiceThread& thread, const std::function<void()>& task);

}  // namespace limbo
