// What a fork child drops without a word: it belongs to its parent.
#pragma once

#include <type_traits>

#include "ipc/fork_guard.h"

namespace limbo {

// Holds a Value whose destructor a fork child does not run. What it owns (connections, registered
// memory, tables that a fork child does not have mapped) is its parent's; the child's copy stays.
template <typename Value>
class LeftToParent {
 public:
  LeftToParent() : value() {}
  ~LeftToParent() {
    if (!fork_guard::is_forked_child()) value.~Value();
  }
  LeftToParent(const LeftToParent&) = delete;
  LeftToParent& operator=(const LeftToParent&) = delete;

  [[nodiscard]] Value* operator->() noexcept { return &value; }
  [[nodiscard]] const Value* operator->() const noexcept { return &value; }

 private:
  union {
    Value value;
  };
};

}  // namespace limbo
