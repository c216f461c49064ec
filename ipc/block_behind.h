// The part of a received block that says what it came behind.
#pragma once

#include <memory>

#include "ipc/fork_guard.h"
#include "ipc/left_to_parent.h"
#include "ipc/numbers_behind.h"
#include "ipc/sharing.h"

namespace limbo {

class BlockBehind : public ReceivedBlock {
 public:
  void came_also_by(const ReceivedBlock& other) override {
    fork_guard::begin_use();
    const auto* block = dynamic_cast<const BlockBehind*>(&other);
    if (block != nullptr && block != this) behind().add_all(block->behind());
  }

 protected:
  [[nodiscard]] NumbersBehind& behind() noexcept { return *behind_.operator->(); }
  [[nodiscard]] const NumbersBehind& behind() const noexcept { return *behind_.operator->(); }

 private:
  LeftToParent<NumbersBehind> behind_;
};

}  // namespace limbo
