// Which processes have claimed, or declined, the exports that were promised to several processes.
//
// A set grows with those that come, not with those that were promised: whoever sends on names any
// number, and it is the owner's memory. They come under the collect lock, where nothing is allocated:
// all names lie in one table, which takes memory only where it was ever used. Noting may not fail;
// where the table is full, the process has not used up its promise, and the export ends by its time
// limit instead.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ipc/ledger_sparse.h"

namespace limbo {

// One set for each export: a hash table of pairs of an export and a name, chained by bucket, and by
// export so that it can be cleared. Guarded by the collect lock.
class LeaseSets {
 public:
  // As many names as this for every export at once, and always some thousands, so that a short table
  // of exports does not mean that few may come.
  static constexpr std::size_t kNamesPerExport = 8;
  static constexpr std::size_t kNamesAtLeast = 8192;

  explicit LeaseSets(std::uint32_t exports)
      : capacity_(std::max(kNamesPerExport * exports, kNamesAtLeast)),
        mask_(std::bit_ceil(capacity_ / kNamesPerExport) - 1),
        sets_(exports),
        buckets_(mask_ + 1),
        entries_(capacity_) {}

  // True when the name was not in the export's set and is now. A table that is full takes none.
  bool insert(std::uint32_t export_index, std::uint64_t name) noexcept {
    Link& bucket = bucket_of(export_index, name);
    for (Link link = bucket; link != 0; link = entries_[link - 1].next_in_bucket) {
      const Entry& entry = entries_[link - 1];
      if (entry.name == name && entry.export_index == export_index) return false;
    }
    const Link taken = take();
    if (taken == 0) return false;
    Set& set = sets_[export_index];
    entries_[taken - 1] = {name, export_index, bucket, set.first};
    bucket = taken;
    set.first = taken;
    ++set.size;
    return true;
  }
  void clear(std::uint32_t export_index) noexcept {
    Set& set = sets_[export_index];
    if (set.first == 0) return;
    while (set.first != 0) {
      const Link link = set.first;
      Entry& entry = entries_[link - 1];
      Link* at = &bucket_of(export_index, entry.name);
      while (*at != link) at = &entries_[*at - 1].next_in_bucket;
      *at = entry.next_in_bucket;
      set.first = entry.next_of_export;
      entry.next_of_export = free_;
      free_ = link;
    }
    set.size = 0;
  }
  [[nodiscard]] std::uint32_t size(std::uint32_t export_index) const noexcept {
    return sets_[export_index].size;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

 private:
  using Link = std::uint32_t;  // index + 1 of an entry, 0 for none: so that zero bytes are empty

  struct Entry {
    std::uint64_t name;
    std::uint32_t export_index;
    Link next_in_bucket;
    Link next_of_export;  // or of the free ones
  };
  struct Set {
    Link first;
    std::uint32_t size;
  };

  [[nodiscard]] Link& bucket_of(std::uint32_t export_index, std::uint64_t name) noexcept {
    constexpr std::uint64_t kMix = 0x9e37'79b9'7f4a'7c15ULL;
    return buckets_[static_cast<std::size_t>(((name + export_index) * kMix) >> 32) & mask_];
  }
  // 0: there is none left.
  [[nodiscard]] Link take() noexcept {
    if (const Link link = free_; link != 0) {
      free_ = entries_[link - 1].next_of_export;
      return link;
    }
    return next_fresh_ < capacity_ ? static_cast<Link>(++next_fresh_) : 0;
  }

  const std::size_t capacity_;
  const std::size_t mask_;
  SparseArray<Set> sets_;  // by export
  SparseArray<Link> buckets_;
  SparseArray<Entry> entries_;
  Link free_ = 0;
  std::size_t next_fresh_ = 0;  // entries from here on were never used
};

}  // namespace limbo
