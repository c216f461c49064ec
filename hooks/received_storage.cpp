#include "hooks/received_storage.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooks/process.h"

namespace limbo {
namespace {

using StorageImpl = c10::StorageImpl;
using WeakStorage = c10::weak_intrusive_ptr<StorageImpl>;

WeakStorage no_storage() {
  return WeakStorage(c10::intrusive_ptr<StorageImpl>());
}

struct KeyHash {
  std::size_t operator()(const ReceivedKey& key) const noexcept {
    std::uint64_t result = 0;
    for (const std::uint64_t word :
         {key.producer.high, key.producer.low, std::uint64_t{key.piece_index}, key.piece_generation,
          key.offset_bytes, key.size_bytes, static_cast<std::uint64_t>(key.device)}) {
      // 2^64 divided by the golden ratio, made odd: spreads near values apart.
      result = (result ^ word) * 0x9E3779B97F4A7C15ULL;
      result ^= result >> 29U;
    }
    return static_cast<std::size_t>(result);
  }
};

// A received storage that lives, or is just dying.
struct Entry {
  const ReceivedBlock* block = nullptr;  // whose it is
  std::size_t size_bytes = 0;
  WeakStorage storage;
};

struct Table {
  std::mutex mutex;  // guards all below; a leaf: no strong reference is taken or dropped under it
  std::unordered_map<ReceivedKey, Entry, KeyHash> by_key;
  std::multimap<std::uintptr_t, Entry> by_address;
  std::size_t largest_bytes = 0;  // how far back a search by address must look
  std::atomic<std::size_t> count{0};
};

Table& table() {
  static auto* made = new Table;  // never destroyed: storages die during static destruction too
  return *made;
}

std::uintptr_t address_of(const void* data) {
  return std::bit_cast<std::uintptr_t>(data);
}

// The deleter of every received storage; `context` is its claim.
void end_claim(void* context) {
  std::unique_ptr<ReceivedBlock> block(static_cast<ReceivedBlock*>(context));
  if (in_forked_child()) {
    (void)block.release();  // the claim is the parent's, and so is its end
    return;
  }
  // What the table held is dropped after the unlock.
  WeakStorage dropped_entry = no_storage();
  WeakStorage dropped_range = no_storage();
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  const auto found = where.by_key.find(block->key());
  // Not ours: another storage of this key has come while this one was dying.
  if (found != where.by_key.end() && found->second.block == block.get()) {
    dropped_entry = std::move(found->second.storage);
    where.by_key.erase(found);
  }
  const auto [begin, end] = where.by_address.equal_range(address_of(block->data()));
  const auto range = std::find_if(
      begin, end, [&](const auto& entry) { return entry.second.block == block.get(); });
  if (range == end) return;
  dropped_range = std::move(range->second.storage);
  where.by_address.erase(range);
  where.count.fetch_sub(1, std::memory_order_relaxed);
}

c10::intrusive_ptr<StorageImpl> make_storage(std::unique_ptr<ReceivedBlock> block) {
  const auto size_bytes = static_cast<std::int64_t>(block->size_bytes());
  const c10::Device device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(block->device()));
  c10::DataPtr data(block->data(), block.get(), &end_claim, device);
  (void)block.release();  // the DataPtr's now
  auto storage = c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(),
                                                  c10::SymInt(size_bytes), std::move(data),
                                                  /*allocator=*/nullptr, /*resizable=*/false);
  storage->set_resizable(false);
  storage->set_received_cuda(true);
  return storage;
}

WeakStorage find_by_key(const ReceivedKey& key) {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  const auto found = where.by_key.find(key);
  return found == where.by_key.end() ? no_storage() : found->second.storage;
}

// Enters `made`, unless the table holds another one than `expected` (which is dead, or nothing).
bool enter(const c10::intrusive_ptr<StorageImpl>& made, const WeakStorage& expected) {
  const ReceivedBlock* block = received_block(made->data_ptr());
  const Entry entry{block, block->size_bytes(), WeakStorage(made)};
  WeakStorage replaced = no_storage();
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  const auto found = where.by_key.find(block->key());
  if (found == where.by_key.end()) {
    where.by_key.emplace(block->key(), entry);
  } else {
    // Compared by the storage, not by the claim: `expected` keeps its address from being reused.
    if (!(found->second.storage == expected)) return false;
    replaced = std::move(found->second.storage);
    found->second = entry;
  }
  where.by_address.emplace(address_of(block->data()), entry);
  where.largest_bytes = std::max(where.largest_bytes, block->size_bytes());
  where.count.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// The storages whose memory holds `address`.
std::vector<WeakStorage> storages_around(std::uintptr_t address) {
  std::vector<WeakStorage> found;
  Table& where = table();
  if (where.count.load(std::memory_order_relaxed) == 0) return found;
  const std::lock_guard lock(where.mutex);
  for (auto at = where.by_address.upper_bound(address); at != where.by_address.begin();) {
    --at;
    if (address - at->first >= where.largest_bytes) break;
    if (address - at->first < at->second.size_bytes) found.push_back(at->second.storage);
  }
  return found;
}

}  // namespace

ReceivedBlock* received_block(const c10::DataPtr& data) noexcept {
  if (data.get_deleter() != &end_claim) return nullptr;
  return static_cast<ReceivedBlock*>(data.get_context());
}

c10::intrusive_ptr<StorageImpl> storage_of(std::unique_ptr<ReceivedBlock> block,
                                           StreamRef current) {
  const ReceivedKey key = block->key();
  c10::intrusive_ptr<StorageImpl> made;
  for (;;) {
    const WeakStorage living = find_by_key(key);
    if (auto storage = living.lock()) {
      ReceivedBlock* first = received_block(storage->data_ptr());
      first->came_also_by(made ? *received_block(made->data_ptr()) : *block);
      first->record_stream(current);
      return storage;  // the second claim ends here, with `block` or with `made`
    }
    if (!made) made = make_storage(std::move(block));
    if (enter(made, living)) return made;
  }
}

bool record_received(const c10::DataPtr& data, StreamRef stream) {
  if (ReceivedBlock* block = received_block(data)) {
    block->record_stream(stream);
    return true;
  }
  bool recorded = false;
  for (const WeakStorage& weak : storages_around(address_of(data.get()))) {
    const auto storage = weak.lock();
    if (!storage) continue;
    received_block(storage->data_ptr())->record_stream(stream);
    recorded = true;
  }
  return recorded;
}

std::size_t received_storage_count() {
  return table().count.load(std::memory_order_relaxed);
}

}  // namespace limbo
