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
  [[nodiscard]] NumbersBehind& behind() noexcept { return *owned_->behind; }
  [[nodiscard]] const NumbersBehind& behind() const noexcept { return *owned_->behind; }
  // For the table of what is held.
  [[nodiscard]] std::shared_ptr<const NumbersBehind> shared_behind() const noexcept {
    return owned_->behind;
  }

 private:
  struct Owned {
    std::shared_ptr<NumbersBehind> behind = std::make_shared<NumbersBehind>();
  };
  LeftToParent<Owned> owned_;
};

}  // namespace limbo
