#include "ipc/consumer_row.h"

namespace limbo {

ConsumerRow::ConsumerRow(RowView row) : row_(row), free_(row.claims()), noted_(row.claims()) {
  for (std::uint32_t slot = 0; slot < row_.claims(); ++slot) free_.push_back(slot);
}

std::optional<std::uint32_t> ConsumerRow::take() {
  const std::lock_guard lock(mutex_);
  if (used() >= row_.claims() / 2) strike_off();
  if (closed_) return std::nullopt;
  if (free_.empty()) {
    if (protocol::makes(protocol::Mistake::kSlotTakenBeforeStrikeOff)) return reads_free();
    return std::nullopt;
  }
  const std::uint32_t slot = free_.front();
  free_.pop_front();
  return slot;
}

bool ConsumerRow::close_if_unused() {
  const std::lock_guard lock(mutex_);
  closed_ = closed_ || used() == noted_.size();
  return closed_;
}

bool ConsumerRow::close_unless_occupied() {
  const std::lock_guard lock(mutex_);
  closed_ = closed_ || used() == noted_.size() + retired_;
  return closed_;
}

bool ConsumerRow::is_closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

// What a consumer without a list of its releases would take.
std::optional<std::uint32_t> ConsumerRow::reads_free() const {
  protocol::StdMemory memory;
  for (std::uint32_t slot = 0; slot < row_.claims(); ++slot) {
    if (protocol::slot_is_free(memory, row_, slot)) return slot;
  }
  return std::nullopt;
}

void ConsumerRow::untake(std::uint32_t slot) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_front(slot);
}

void ConsumerRow::released(std::uint32_t slot) noexcept {
  const std::lock_guard lock(mutex_);
  noted_.push_back(slot);
}

void ConsumerRow::retire(std::uint32_t) {
  const std::lock_guard lock(mutex_);
  ++retired_;
}

// Slots come back about in the order in which they were released, so the first that is not free
// yet ends the search; all are looked at only when there is no other.
void ConsumerRow::strike_off() {
  protocol::StdMemory memory;
  for (std::uint32_t left = noted_.size(); left > 0; --left) {
    const std::uint32_t slot = noted_.front();
    const bool is_free = protocol::slot_is_free(memory, row_, slot);
    if (!is_free && !free_.empty()) break;
    noted_.pop_front();
    (is_free ? free_ : noted_).push_back(slot);
  }
  if (used() < row_.claims() / 2) bell_rung_ = false;
}

bool ConsumerRow::wants_bell() {
  const std::lock_guard lock(mutex_);
  if (used() < row_.claims() / 2 || noted_.empty() || bell_rung_) return false;
  bell_rung_ = true;
  return true;
}

bool ConsumerRow::half_full() {
  const std::lock_guard lock(mutex_);
  return used() >= row_.claims() / 2;
}

bool ConsumerRow::waits_for_producer() {
  const std::lock_guard lock(mutex_);
  bell_rung_ = false;
  return !noted_.empty();
}

std::uint32_t ConsumerRow::occupied() {
  const std::lock_guard lock(mutex_);
  return used() - noted_.size() - retired_;
}

}  // namespace limbo
