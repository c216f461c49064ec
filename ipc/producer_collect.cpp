// Collecting: what was let go, what consumers claimed and released, what can be closed; and time.
#include <array>
#include <span>
#include <thread>
#include <utility>

#include "ipc/fail_points.h"
#include "ipc/producer_impl.h"
#include "ipc/protocol/close.h"

namespace limbo {
namespace {

using protocol::Look;

// How many exports are closed at a time: one pass over the leases' dirty words for each batch.
constexpr std::size_t kBatchExports = 256;

// How many passes whoever holds the lock runs for others before it unlocks all the same: microseconds.
// Threads that collect in a tight loop would keep it inside for ever, with all that is to be unpinned.
constexpr int kPassesForOthers = 8;

}  // namespace

// ---- holding the lock -----------------------------------------------------------------------

Producer::Impl::Hold::Hold(Impl& owner) : owner_(owner) {
  owner_.lock.lock();
  owner_.exports.start_pass();
}

Producer::Impl::Hold::Hold(Impl& owner, std::adopt_lock_t) : owner_(owner) {
  owner_.exports.start_pass();
}

std::uint64_t Producer::Impl::Hold::leave() {
  std::uint64_t undone = 0;
  if (!std::exchange(held_, false)) return undone;
  // A pass that is owed is run by whoever gets the lock now.
  while (leave_once(undone) && owner_.lock.try_lock_or_ask()) {
    owner_.exports.start_pass();
    owner_.run_pass(Look::kChanged);
  }
  return undone;
}

bool Producer::Impl::Hold::leave_once(std::uint64_t& undone) {
  ExportLink over = 0;
  Block* let_go = nullptr;
  bool look_again = false;
  for (int passes = 0;; ++passes) {
    over = owner_.exports.take_over();
    let_go = std::exchange(owner_.let_go_chain, nullptr);
    look_again = std::exchange(owner_.let_go_again, false);
    const bool any = over != 0 || let_go != nullptr;
    // Told before the unlock: whoever gets the lock next and finds nothing knows that pins are
    // still being undone.
    if (any) owner_.unpins_pending.fetch_add(1, std::memory_order_relaxed);
    LIMBO_FAIL_POINT("collect.before_unlock");
    if (passes == kPassesForOthers) {
      look_again |= owner_.lock.unlock_owing();
      break;
    }
    if (owner_.lock.unlock_or_again()) break;
    if (any) owner_.unpins_pending.fetch_sub(1, std::memory_order_relaxed);
    owner_.exports.put_back_over(over);
    owner_.let_go_chain = let_go;
    owner_.let_go_again = look_again;
    owner_.run_pass(Look::kChanged);
  }
  if (over == 0 && let_go == nullptr) return look_again;
  const std::uint64_t finished = owner_.finish(over, let_go);
  owner_.unpinned.fetch_add(finished, std::memory_order_relaxed);
  owner_.unpins_pending.fetch_sub(1, std::memory_order_release);
  undone += finished;
  return look_again;
}

// Nor does the reaper run passes for others for long: one that is owed still is the next collect's.
void Producer::Impl::Hold::leave_unpins_to_the_next() {
  held_ = false;
  for (int passes = 0; passes < kPassesForOthers; ++passes) {
    LIMBO_FAIL_POINT("collect.before_unlock");
    if (owner_.lock.unlock_or_again()) return;
    owner_.run_pass(Look::kChanged);
  }
  (void)owner_.lock.unlock_owing();
}

std::uint64_t Producer::Impl::finish(ExportLink over, Block* let_go) {
  std::uint64_t undone = exports.finish_over(over, allocator);
  while (let_go != nullptr) {
    Block* const block = std::exchange(let_go, Allocator::next_let_go(let_go));
    allocator.unpin(block);
    ++undone;
  }
  return undone;
}

// ---- a pass, under the lock -----------------------------------------------------------------

// The chain's own pins are undone after the unlock; while one chain waits for that, no other is
// taken, and leaving looks again.
void Producer::Impl::absorb_let_go() {
  if (let_go_chain != nullptr) {
    let_go_again = true;
    return;
  }
  let_go_chain = allocator.take_let_go();
  for (Block* block = let_go_chain; block != nullptr; block = Allocator::next_let_go(block)) {
    exports.let_go(Allocator::lender_note(block), exports.pass_time());
  }
}

void Producer::Impl::run_pass(Look look) {
  absorb_let_go();
  for (const auto& lease : listed()) {
    protocol::note_row(protocol::g_memory, *lease, exports, std::memory_order_acquire, look);
  }
  LIMBO_FAIL_POINT("collect.after_note");
  // What goes back to the candidates within this pass waits for the next one.
  std::uint32_t candidates_left = exports.candidates();
  std::array<std::uint32_t, kBatchExports> batch;
  for (;;) {
    const std::size_t count = exports.collect_batch(batch.data(), batch.size(), candidates_left);
    if (count == 0) break;
    protocol::close_batch(protocol::g_memory, exports, std::span(batch.data(), count),
                          [this] { return listed(); });
  }
  listed_late = 0;
}

bool Producer::Impl::collect() {
  if (!lock.try_lock_or_ask()) return false;
  Hold hold(*this, std::adopt_lock);
  run_pass(Look::kChanged);
  return hold.leave() > 0;
}

bool Producer::Impl::look_thoroughly(std::chrono::milliseconds at_most) {
  const auto deadline = ProducerClock::now() + at_most;
  const std::uint64_t before = unpinned.load(std::memory_order_relaxed);
  if (lock.try_lock_until(deadline)) {
    Hold hold(*this, std::adopt_lock);
    for (const auto& lease : leases) lease->grant_scans();
    run_pass(Look::kEverything);
  }
  while (unpins_pending.load(std::memory_order_acquire) != 0 && ProducerClock::now() < deadline &&
         !protocol::makes(protocol::Mistake::kUnpinsNotAwaited)) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return unpinned.load(std::memory_order_relaxed) != before;
}

bool Producer::collect() {
  return impl_->collect();
}

bool Producer::collect_thoroughly(int, std::chrono::milliseconds at_most) {
  return impl_->look_thoroughly(at_most);
}

// ---- time -----------------------------------------------------------------------------------

std::optional<Producer::Clock::time_point> Producer::next_deadline() {
  Impl::Hold hold(*impl_);
  impl_->absorb_let_go();  // a free starts the clock
  return impl_->exports.next_deadline();
}

void Producer::run_time_limits(Clock::time_point now) {
  Impl::Hold hold(*impl_);
  impl_->absorb_let_go();
  if (impl_->exports.expire(now) > 0) impl_->run_pass(Look::kChanged);
}

bool Producer::lends_anything() {
  Impl::Hold hold(*impl_);
  return impl_->exports.counts().open > 0;
}

}  // namespace limbo
