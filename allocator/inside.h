// What the calling thread is in the midst of: it may be called back from there, and come here again.
#pragma once

#include <cstddef>

namespace limbo {

// While it lives, which is on the stack, its thread is inside `of`.
template <typename Of>
class Inside {
 public:
  explicit Inside(const Of& of) noexcept : of_(&of), outer_(innermost_) { innermost_ = this; }
  ~Inside() { innermost_ = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  // Of the calling thread: whether it is inside any, and how many times inside this one.
  [[nodiscard]] static bool any() noexcept { return innermost_ != nullptr; }
  [[nodiscard]] static std::size_t times(const Of& of) noexcept {
    std::size_t count = 0;
    for (const Inside* one = innermost_; one != nullptr; one = one->outer_) {
      if (one->of_ == &of) ++count;
    }
    return count;
  }

 private:
  static inline thread_local constinit const Inside* innermost_ = nullptr;

  const Of* const of_;
  const Inside* const outer_;
};

}  // namespace limbo
