#include "tests/support/peer_balance.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>

#include "ipc/sharing.h"
#include "tests/support/eventually.h"
#include "tests/support/sizes.h"

namespace limbo::testing {
namespace {

using Names = std::multiset<std::string>;

constexpr char kLedger[] = "/memfd:limbo-ledger (deleted)";
constexpr char kTimelines[] = "/memfd:limbo-timelines (deleted)";
constexpr char kOwnTimelines[] = "/memfd:limbo-timelines-of-lease (deleted)";
constexpr char kRow[] = "/memfd:limbo-row (deleted)";
constexpr char kPidfd[] = "anon_inode:[pidfd]";
constexpr char kSocket[] = "socket";
constexpr char kLifeLine[] = "pipe";
constexpr char kNamesLock[] = "/names/.lock";

// Rows and the timelines of leases are numbered; their kind is what can be compared.
Names by_kind(const Names& names) {
  Names kinds;
  for (const std::string& name : names) {
    kinds.insert(name.starts_with("/memfd:limbo-row-")         ? kRow
                 : name.starts_with("/memfd:limbo-timelines-") ? kOwnTimelines
                                                               : name);
  }
  return kinds;
}

// What is in `after` and not in `before` is added to `sum`.
void add_difference(const Names& before, const Names& after, Names& sum) {
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                      std::inserter(sum, sum.end()));
}

// A message to nobody, taken back.
void lend_once() {
  Sharing& sharing = process_sharing();
  Allocator& allocator = process_allocator();
  void* data = allocator.allocate(kMiB, {0, nullptr});
  try {
    sharing.withdraw(sharing.share(data, kMiB, {}, {}));
  } catch (...) {
    allocator.free(data);
    throw;
  }
  allocator.free(data);
  const bool over = eventually([&] {
    (void)sharing.collect();
    allocator.empty_cache();
    return sharing.stats().exports_open == 0 && allocator.stats(0).reserved_bytes[0].current == 0;
  });
  if (!over) throw std::runtime_error("the memory of a message to nobody does not come back");
}

}  // namespace

PeerBalance::PeerBalance() {
  (void)process_sharing().incarnation();
  (void)process_allocator().device().memory_info(0);  // what it opens, it opens here
  before_ = now();
}

void PeerBalance::begin_lending() {
  if (lending_) return;
  lending_ = true;
  const Balance without = now();
  lend_once();
  const Balance with = now();
  add_difference(without.descriptors, with.descriptors, before_.descriptors);
  add_difference(without.memfd_mappings, with.memfd_mappings, before_.memfd_mappings);
}

std::string PeerBalance::left_behind(bool alone, const SharingStats& stats) const {
  const Balance after = now();
  Balance allowed = before_;
  const std::size_t own = before_.memfd_mappings.count(kLedger);
  const std::size_t links = alone ? 0 : after.memfd_mappings.count(kLedger) - own;
  for (std::size_t count = 0; count < links; ++count) {
    // The connection and the life line's far end; the link's pidfd and its watch's.
    allowed.descriptors.insert(
        {kLedger, kTimelines, kOwnTimelines, kRow, kSocket, kLifeLine, kPidfd, kPidfd});
    allowed.memfd_mappings.insert({kLedger, kTimelines, kOwnTimelines, kRow});
  }
  for (std::size_t count = 0; count < stats.leases_connected; ++count) {
    allowed.descriptors.insert({kOwnTimelines, kRow, kSocket, kLifeLine, kPidfd});
    allowed.memfd_mappings.insert({kOwnTimelines, kRow});
  }
  // Those who have sent on what was opened here.
  for (std::size_t count = 0; count < stats.forwarders_met; ++count) {
    allowed.descriptors.insert({kOwnTimelines, kLifeLine, kPidfd});
    allowed.memfd_mappings.insert(kOwnTimelines);
  }
  // Who has published keeps the names' folder, its lock and the folder above open.
  for (const std::string& name : after.descriptors) {
    if (!name.ends_with(kNamesLock)) continue;
    const std::string directory = name.substr(0, name.size() - sizeof(kNamesLock) + 1);
    allowed.descriptors.insert({name, directory + "/names", directory});
    break;
  }
  std::string text = testing::left_behind(allowed, after);
  std::replace(text.begin(), text.end(), '\n', ';');
  return text;
}

// Files are left out: those of other processes of the test are among them.
Balance PeerBalance::now() {
  const Balance all = Balance::now();
  Balance balance;
  balance.descriptors = by_kind(all.descriptors);
  balance.memfd_mappings = by_kind(all.memfd_mappings);
  if (process_allocator().device().name() != "simulated") {
    // A driver opens sockets and the like as it needs them.
    std::erase_if(balance.descriptors,
                  [](const std::string& name) { return !name.starts_with("/memfd:limbo"); });
  }
  return balance;
}

}  // namespace limbo::testing
