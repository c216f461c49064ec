// The received blocks that live, by address: whoever sends memory on finds by which claim, or by
// which open of a block of its own, this process has it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ipc/fork_guard.h"
#include "ipc/producer.h"
#include "ipc/protocol/release.h"

namespace limbo {

class NumbersBehind;
class ProducerLink;

struct Holding {
  const std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  StreamRef received_on;        // has waited for all earlier work on the block
  std::uint64_t stream_id = 0;  // of that stream: handles are reused
  // Of another process:
  std::shared_ptr<ProducerLink> link;
  protocol::Release claim;
  ExportTicket ticket;  // of the message that it came by
  // Of this process:
  OwnOpen own;
  // Of either: of its block, which may stand for further messages too.
  std::shared_ptr<const NumbersBehind> behind;
};

// Thread-safe. One relaxed load where nothing is held.
class Holdings {
 public:
  using Table = std::multimap<const std::byte*, Holding>;

  // Calls `found` with a holding that covers the range, if there is one, and says so. The holding
  // lives while `found` runs, under the table's lock: it must call nothing that takes a lock.
  bool find(const void* data, std::size_t size_bytes,
            const std::function<void(const Holding&)>& found) {
    return visit(data, size_bytes, [&](const Holding& holding) {
      found(holding);
      return false;
    });
  }

  // Copies of all that cover the range: memory that came by several messages has one for each, and
  // each may be over for a reason of its own.
  [[nodiscard]] std::vector<Holding> find_all(const void* data, std::size_t size_bytes) {
    std::vector<Holding> all;
    visit(data, size_bytes, [&](const Holding& holding) {
      all.push_back(holding);
      return true;
    });
    return all;
  }

 private:
  friend class HeldPlace;

  // Until `visitor` says false. Whether there was any.
  template <typename Visitor>
  bool visit(const void* data, std::size_t size_bytes, Visitor&& visitor) {
    bool any = false;
    if (count_.load(std::memory_order_relaxed) == 0) return any;
    const auto* begin = static_cast<const std::byte*>(data);
    const std::lock_guard lock(mutex_);
    for (auto entry = table_.upper_bound(begin); entry != table_.begin();) {
      const Holding& holding = (--entry)->second;
      const auto inside = static_cast<std::size_t>(begin - holding.data);
      if (inside >= largest_bytes_) return any;  // so are all that begin earlier
      if (inside < holding.size_bytes && size_bytes <= holding.size_bytes - inside) {
        any = true;
        if (!visitor(holding)) return any;
      }
    }
    return any;
  }

  Table::iterator add(Holding&& holding) {
    const std::lock_guard lock(mutex_);
    if (holding.size_bytes > largest_bytes_) largest_bytes_ = holding.size_bytes;
    const std::byte* const data = holding.data;
    const auto place = table_.emplace(data, std::move(holding));
    count_.fetch_add(1, std::memory_order_relaxed);
    return place;
  }
  void remove(Table::iterator place) noexcept {
    Table::node_type last;  // what it names may end with it: after the unlock
    const std::lock_guard lock(mutex_);
    last = table_.extract(place);
    count_.fetch_sub(1, std::memory_order_relaxed);
  }

  std::atomic<std::size_t> count_{0};
  std::mutex mutex_;  // guards what follows; a leaf
  Table table_;
  std::size_t largest_bytes_ = 0;  // of all that were ever held
};

// A block's place in the table, from its opening to its release.
class HeldPlace {
 public:
  HeldPlace() noexcept = default;
  HeldPlace(Holdings& all, Holding&& holding) : all_(&all), place_(all.add(std::move(holding))) {}
  HeldPlace(HeldPlace&& other) noexcept
      : all_(std::exchange(other.all_, nullptr)), place_(other.place_) {}
  HeldPlace& operator=(HeldPlace&& other) noexcept {
    if (this == &other) return *this;
    end();
    all_ = std::exchange(other.all_, nullptr);
    place_ = other.place_;
    return *this;
  }
  ~HeldPlace() { end(); }

  // Before the claim is released, or the pin undone. In a fork child it is the parent's.
  void end() noexcept {
    Holdings* const all = std::exchange(all_, nullptr);
    if (all != nullptr && !fork_guard::is_forked_child()) all->remove(place_);
  }

 private:
  Holdings* all_ = nullptr;
  Holdings::Table::iterator place_{};
};

}  // namespace limbo
