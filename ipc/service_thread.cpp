#include "ipc/service_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "allocator/error.h"
#include "ipc/fail_points.h"
#include "ipc/owned_fd.h"

namespace limbo {
namespace {

// When a periodic that failed is called again.
constexpr std::chrono::milliseconds kAfterFailure{100};

}  // namespace

struct ServiceThread::Impl {
  OwnedFd epoll{::epoll_create1(EPOLL_CLOEXEC)};
  OwnedFd bell{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  std::mutex mutex;  // guards tasks and stopping; nothing is called under it
  std::vector<Task> tasks;
  bool stopping = false;
  std::atomic<bool> rung{false};  // set by whoever has written to the bell since the last round

  // Set before the periodics look for work, cleared when they have a deadline: see nudge.
  std::atomic<bool> no_deadline{false};

  // Of the thread alone. Handlers are shared so that one that unwatches itself outlives its call.
  std::map<int, std::shared_ptr<Task>> handlers;
  std::vector<Periodic> periodics;
  std::thread thread;

  void ring() noexcept {
    if (rung.exchange(true, std::memory_order_seq_cst)) return;
    const std::uint64_t one = 1;
    if (::write(bell.get(), &one, sizeof(one)) < 0) rung.store(false);
  }

  // False: it failed. A background thread has nobody to tell.
  template <typename Function>
  static bool guarded(Function&& function) noexcept {
    try {
      function();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  void watch(int fd, std::uint32_t events, Task handler);
  void run();
  void dispatch(int timeout_ms);
  bool run_tasks();
  int run_periodics();
};

void ServiceThread::Impl::dispatch(int timeout_ms) {
  std::array<epoll_event, 32> events{};
  const int count =
      ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int index = 0; index < count; ++index) {
    const int fd = events[static_cast<std::size_t>(index)].data.fd;
    if (fd == bell.get()) {
      std::uint64_t rings = 0;
      if (::read(bell.get(), &rings, sizeof(rings)) < 0) continue;
      continue;
    }
    const auto found = handlers.find(fd);  // an earlier handler of this round may have removed it
    if (found == handlers.end()) continue;
    const std::shared_ptr<Task> handler = found->second;
    guarded(*handler);
  }
}

bool ServiceThread::Impl::run_tasks() {
  std::vector<Task> batch;
  bool stop = false;
  {
    const std::lock_guard lock(mutex);
    batch.swap(tasks);
    stop = stopping;
  }
  for (Task& task : batch) {
    guarded(task);
    task = nullptr;  // what it held on to goes before the next begins, which may count on that
  }
  return !stop;
}

int ServiceThread::Impl::run_periodics() {
  std::optional<Clock::time_point> next;
  for (std::size_t index = 0; index < periodics.size(); ++index) {
    std::optional<Clock::time_point> wanted;
    if (!guarded([&] { wanted = periodics[index](Clock::now()); })) {
      wanted = Clock::now() + kAfterFailure;
    }
    if (wanted && (!next || *wanted < *next)) next = wanted;
  }
  if (!next) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(wait.count(), 0, 3'600'000));
}

void ServiceThread::Impl::run() {
  int timeout_ms = 0;
  while (true) {
    dispatch(timeout_ms);
    rung.store(false, std::memory_order_seq_cst);  // before looking at what was asked for
    if (!run_tasks()) return;
    no_deadline.store(true, std::memory_order_seq_cst);
    timeout_ms = run_periodics();
    if (timeout_ms >= 0) no_deadline.store(false, std::memory_order_relaxed);
  }
}

ServiceThread::ServiceThread(const std::string& name) : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = impl.bell.get();
  if (!impl.epoll.valid() || !impl.bell.valid() ||
      ::epoll_ctl(impl.epoll.get(), EPOLL_CTL_ADD, impl.bell.get(), &event) != 0) {
    throw Error(ErrorCode::kInternal,
                "The thread " + name + " cannot be started: " + std::strerror(errno) + ".",
                "Raise the limit of open files.");
  }
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    impl.thread = std::thread([&impl] { impl.run(); });
  } catch (const std::exception& failure) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorCode::kInternal,
                "The thread " + name + " cannot be started: " + failure.what() + ".");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(impl.thread.native_handle(), name.c_str());
}

ServiceThread::~ServiceThread() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->rung.store(false);
  impl_->ring();
  impl_->thread.join();
}

void ServiceThread::post(Task task) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->tasks.push_back(std::move(task));
  }
  impl_->ring();
}

void ServiceThread::ring() {
  impl_->ring();
}

void ServiceThread::nudge() {
  if (impl_->no_deadline.load(std::memory_order_seq_cst)) impl_->ring();
}

void ServiceThread::watch(int fd, Task handler) {
  impl_->watch(fd, EPOLLIN | EPOLLRDHUP, std::move(handler));
}

void ServiceThread::watch_hangup(int fd, Task handler) {
  impl_->watch(fd, 0, std::move(handler));  // of a hang-up epoll tells always
}

void ServiceThread::Impl::watch(int fd, std::uint32_t events, Task handler) {
  LIMBO_FAIL_POINT("watch.before_add");
  // The handler first: whoever is watched has one.
  const auto place =
      handlers.insert_or_assign(fd, std::make_shared<Task>(std::move(handler))).first;
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int cause = errno;
    handlers.erase(place);
    throw Error(ErrorCode::kInternal, "Descriptor " + std::to_string(fd) +
                                          " cannot be watched: " + std::strerror(cause) + ".");
  }
}

void ServiceThread::unwatch(int fd) {
  if (impl_->handlers.erase(fd) > 0) {
    ::epoll_ctl(impl_->epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

void ServiceThread::add_periodic(Periodic periodic) {
  impl_->periodics.push_back(std::move(periodic));
}

void run_and_wait(ServiceThread& thread, const std::function<void()>& task) {
  std::mutex mutex;
  std::condition_variable done;
  bool is_done = false;
  thread.post([&] {
    try {
      task();
    } catch (...) {
      // As on the thread itself: nobody is told.
    }
    const std::lock_guard lock(mutex);
    is_done = true;
    done.notify_one();
  });
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return is_done; });
}

}  // namespace limbo
