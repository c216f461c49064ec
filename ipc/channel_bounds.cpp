#include "ipc/channel_bounds.h"

#include <utility>

namespace limbo {
struct Backlog::Undone {
  explicit Undone(std::shared_ptr<Backlog> backlog) noexcept : of(std::move(backlog)) {
    of->undone_.fetch_add(1);
  }
  ~Undone() { of->one_is_done(); }
  Undone(const Undone&) = delete;
  Undone& operator=(const Undone&) = delete;

  const std::shared_ptr<Backlog> of;
};

Backlog::Turn Backlog::turn() {
  return std::make_shared<const Undone>(shared_from_this());
}

// Of those that go down one comes past the mark; and whoever asks to be woken looks afterwards.
void Backlog::one_is_done() noexcept {
  if (undone_.fetch_sub(1) == most_ / 2 + 1 && wakes_reaper_.load()) reaper_.ring();
}

}  // namespace limbo
