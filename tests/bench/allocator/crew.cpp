#include "tests/bench/allocator/crew.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "tests/bench/allocator/measure.h"

namespace limbo::bench {

struct Crew::Part {
  Clock::time_point start;
  Clock::time_point end;
  std::exception_ptr error;
};

Crew::Crew(std::size_t size, std::function<void()> enter)
    : parts_(size),
      start_(static_cast<std::ptrdiff_t>(size) + 1),
      end_(static_cast<std::ptrdiff_t>(size) + 1) {
  for (std::size_t i = 0; i < size; ++i) {
    threads_.emplace_back([this, i, enter] { live(i, enter); });
  }
}

Crew::~Crew() {
  work_ = nullptr;
  start_.arrive_and_wait();
  for (std::thread& thread : threads_) thread.join();
}

void Crew::live(std::size_t index, const std::function<void()>& enter) {
  Part& part = parts_[index];
  bool entered = false;
  while (true) {
    start_.arrive_and_wait();
    if (work_ == nullptr) return;
    if (index < count_) {
      const auto attempt = [&part](const auto& action) {
        try {
          if (part.error == nullptr) action();
        } catch (...) {
          part.error = std::current_exception();
        }
      };
      attempt([&] {
        if (!entered) enter();
        entered = true;
      });
      attempt([&] { (*work_)(index); });
      meet();
      part.start = Clock::now();
      attempt([&] { (*work_)(index); });
      part.end = Clock::now();
    }
    end_.arrive_and_wait();
  }
}

// Without sleep: who sleeps at a barrier wakes some hundred microseconds after the others.
void Crew::meet() {
  arrived_.fetch_add(1);
  for (unsigned looks = 0; arrived_.load() < count_; ++looks) {
    if (looks > 1000) std::this_thread::yield();
  }
}

double Crew::run(std::size_t count, const std::function<void(std::size_t)>& work) {
  count_ = std::min(count, parts_.size());
  work_ = &work;
  arrived_.store(0);
  start_.arrive_and_wait();
  end_.arrive_and_wait();
  Clock::time_point first = parts_[0].start;
  Clock::time_point last = parts_[0].end;
  std::exception_ptr error;
  for (std::size_t i = 0; i < count_; ++i) {
    first = std::min(first, parts_[i].start);
    last = std::max(last, parts_[i].end);
    if (parts_[i].error != nullptr) error = std::exchange(parts_[i].error, nullptr);
  }
  if (error != nullptr) std::rethrow_exception(error);
  return std::chrono::duration<double>(last - first).count();
}

}  // namespace limbo::bench
