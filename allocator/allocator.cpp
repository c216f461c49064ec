// The ways in, and the hits: an allocation of a size that this thread freed before on the stream,
// and a free of a block without pins and flags, stay inside this file and the thread's cache.
#include "allocator/allocator.h"

#include <string>

#include "allocator/allocator_impl.h"
#include "allocator/error.h"
#include "allocator/options.h"

namespace limbo {
namespace {

const Option kThreadCache({"thread_cache_bytes", "bytes", 0, std::int64_t{1} << 40,
                           std::int64_t{256} << 20,
                           "the most that one thread's cache of free blocks holds; 0 turns caches "
                           "off; fixed when the allocator is made"});
const Option kUnmapWait({"unmap_wait_ms", "ms", 0, 60'000, 1'000,
                         "how long an allocation waits, before out-of-memory, for other processes "
                         "to unmap free memory; fixed when the allocator is made"});
const Option kCollectWait({"collect_wait_ms", "ms", 0, 60'000, 1'000,
                           "how long an allocation waits, before out-of-memory, for a running "
                           "collect; fixed when the allocator is made"});

std::uint64_t next_allocator_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Allocator::Impl::Impl(Device& on_device)
    : id(next_allocator_id()),
      device(on_device),
      capture_order(dynamic_cast<CaptureOrder*>(&on_device)),
      provider(on_device),
      thread_cache_limit_bytes(static_cast<std::size_t>(kThreadCache.value())),
      unmap_wait(kUnmapWait.value()),
      collect_wait(kCollectWait.value()) {
  Gate::prepare();
  const int count = device.device_count();
  for (int index = 0; index < count; ++index) {
    heaps.push_back(std::make_unique<DeviceHeap>(index, page_table, thread_cache_limit_bytes));
  }
}

// Only tests end an allocator. Blocks that are still handed out go with it.
Allocator::Impl::~Impl() {
  {
    const std::lock_guard registry(thread_registry::mutex());
    for (ThreadCache* cache : caches) cache->disown();
  }
  for (const auto& at : heaps) {
    for (const auto& [key, queue] : at->waits) {
      DeviceHeap& events_of = *heaps[static_cast<std::size_t>(key.first)];
      for (const Wait& wait : queue) events_of.events.give(wait.event);
    }
    for (const auto& [piece_id, segment] : at->segments) {
      try {
        segment->provider->return_piece(at->device, segment->base, segment->size_bytes);
      } catch (...) {  // the process goes on without this memory; nobody is left to tell
      }
    }
  }
  for (const auto& at : heaps) {
    at->events.destroy_all(device, at->device);
  }
  for (Callback* callback = first_callback.load(); callback != nullptr;) {
    Callback* next = callback->next.load();
    delete callback;
    callback = next;
  }
}

DeviceHeap& Allocator::Impl::heap(int index) {
  if (index >= 0 && static_cast<std::size_t>(index) < heaps.size()) {
    return *heaps[static_cast<std::size_t>(index)];
  }
  throw Error(ErrorCode::kBadArgument, "There is no device " + std::to_string(index) + ".",
              "This process has " + std::to_string(heaps.size()) + " device(s), counted from 0.");
}

// Two threads that name it mean two streams: a block would go from one to the other without any
// order, and an event recorded at a free would be of the freeing thread's stream.
void Allocator::Impl::require_named(StreamRef stream) {
  constexpr std::uintptr_t kPerThread = 2;
  if (reinterpret_cast<std::uintptr_t>(stream.handle) != kPerThread) return;
  throw Error(ErrorCode::kBadArgument,
              "cudaStreamPerThread was named as a stream: its meaning changes with the thread.",
              "Use a stream of your own, or the default one.");
}

std::pair<DeviceHeap*, std::unique_lock<HeapMutex>> Allocator::Impl::lock_heap_at(
    const void* data) {
  int index = page_table.device_of(data);
  while (index >= 0) {
    DeviceHeap& at = *heaps[static_cast<std::size_t>(index)];
    std::unique_lock lock(at.mutex);
    const int again = page_table.device_of(data);
    if (again == index) return {&at, std::move(lock)};
    index = again;  // the segment went meanwhile
  }
  return {nullptr, std::unique_lock<HeapMutex>()};
}

// A hit is nothing but plain loads and stores, of which the last hands the block out.
[[gnu::always_inline]] inline void* Allocator::Impl::take_cached(const Request& request) noexcept {
  ThreadCache* cache = thread_cache();
  if (cache == nullptr) [[unlikely]] {
    return nullptr;
  }
  const GateVisit visit(cache->gate());
  if (!visit) [[unlikely]] {
    return nullptr;
  }
  StreamCache* from = cache->find(request.stream);
  if (from == nullptr || from->of_device().caches_bypassed()) [[unlikely]] {
    return nullptr;
  }
  Block* block = cache->try_take(*from, request.size_bytes);
  if (block == nullptr) [[unlikely]] {
    block = cache->take(*from, request.size_bytes);
    if (block == nullptr) return nullptr;
  }
  block->requested_bytes.store(request.requested_bytes, std::memory_order_relaxed);
  from->counters().on_allocate(sizes::is_large(request.size_bytes), request.size_bytes,
                               request.requested_bytes, block->split, from->of_device().epoch());
  void* data = block->data();
  const std::uint64_t word = block->word.load(std::memory_order_relaxed);
  block->word.store(block_word::next_allocated(word), std::memory_order_release);
  return data;
}

// The same from elsewhere.
void* Allocator::Impl::take_cached_again(const Request& request) noexcept {
  return take_cached(request);
}

// A hit is one compare-and-swap, which two frees of the same block cannot both pass, and plain
// loads and stores. False: nothing has happened, and the block is to be freed the slow way.
[[gnu::always_inline]] inline bool Allocator::Impl::free_cached(Block* block, std::uint64_t word) {
  ThreadCache* cache = thread_cache();
  if (cache == nullptr) [[unlikely]] {
    return false;
  }
  bool unknown_stream = false;
  {
    const GateVisit visit(cache->gate());
    if (!visit || !block->word.compare_exchange_strong(
                      word, block_word::with_state(word, BlockState::kCached),
                      std::memory_order_acq_rel)) [[unlikely]] {
      return false;
    }
    StreamCache* to = cache->find(block->segment->stream);
    unknown_stream = to == nullptr;
    if (!unknown_stream) [[likely]] {
      to->counters().on_free(sizes::is_large(block->size_bytes), block->size_bytes,
                             block->requested_bytes.load(std::memory_order_relaxed), block->split,
                             to->of_device().epoch());
      if (cache->try_put(*to, block)) [[likely]] {
        return true;
      }
      if (cache->put(*to, block, nullptr)) return true;
    } else {
      count_free(*cache, *block);
    }
  }
  const StreamRef home = block->segment->stream;
  put_or_give(*cache, block);
  if (unknown_stream) open_stream(*cache, home);
  return true;
}

// Inside the gate: a block of a stream that has no cache in this thread is freed.
void Allocator::Impl::count_free(ThreadCache& cache, const Block& block) noexcept {
  const int index = block.segment->stream.device;
  cache.counters(index).on_free(sizes::is_large(block.size_bytes), block.size_bytes,
                                block.requested_bytes.load(std::memory_order_relaxed), block.split,
                                heaps[static_cast<std::size_t>(index)]->counters.epoch());
}

Allocator::Allocator(Device& device) : impl_(std::make_unique<Impl>(device)) {}
Allocator::~Allocator() = default;

Device& Allocator::device() noexcept {
  return impl_->device;
}

void* Allocator::allocate(std::size_t size_bytes, StreamRef stream) {
  if (size_bytes - 1 < sizes::kExabyte - 1) [[likely]] {  // from 1 byte
    const Request request{stream, sizes::block_size(size_bytes), size_bytes};
    if (void* data = impl_->take_cached(request); data != nullptr) [[likely]] {
      return data;
    }
    return impl_->allocate_missed(request);
  }
  return impl_->refuse_size(size_bytes, stream);
}

void* Allocator::Impl::allocate_missed(const Request& request) {
  static_cast<void>(heap(request.stream.device));  // whether there is one
  return allocate_slow(request);
}

void* Allocator::Impl::refuse_size(std::size_t size_bytes, StreamRef stream) {
  DeviceHeap& at = heap(stream.device);
  if (size_bytes == 0) return nullptr;
  throw_out_of_memory(at, {stream, size_bytes, size_bytes});
}

void Allocator::free(void* data) {
  // Nothing starts at null.
  Block* block = impl_->page_table.starting_at(data);
  if (block == nullptr) [[unlikely]] {
    if (data == nullptr) return;
    impl_->throw_wrong_free(data);
  }
  const std::uint64_t word = block->word.load(std::memory_order_acquire);
  if (block_word::is_plain_allocated(word) && impl_->frees_may_be_cached() &&
      impl_->free_cached(block, word)) [[likely]] {
    return;
  }
  impl_->free_slow(data, block, word);
}

std::optional<BlockView> Allocator::find(const void* data) {
  const auto [at, lock] = impl_->lock_heap_at(data);
  if (at == nullptr) return std::nullopt;
  Block* block = impl_->page_table.holding(data);
  if (block == nullptr || block->state() != BlockState::kAllocated) return std::nullopt;
  return impl_->view(block);
}

void Allocator::set_lender(Lender* lender) noexcept {
  impl_->lender.store(lender, std::memory_order_release);
}

void Allocator::add_free_memory_callback(std::function<bool()> callback) {
  auto* node = new Impl::Callback{std::move(callback)};
  const std::lock_guard lock(impl_->callbacks_mutex);
  std::atomic<Impl::Callback*>* at = &impl_->first_callback;
  while (Impl::Callback* next = at->load(std::memory_order_relaxed)) at = &next->next;
  at->store(node, std::memory_order_release);
}

void Allocator::set_limit_bytes(int device, std::size_t limit_bytes) {
  DeviceHeap& at = impl_->heap(device);
  const std::lock_guard lock(at.mutex);
  at.limit_bytes = limit_bytes;
}

std::size_t Allocator::limit_bytes(int device) const {
  const DeviceHeap& at = impl_->heap(device);
  const std::lock_guard lock(at.mutex);
  return at.limit_bytes;
}

bool Allocator::used() const noexcept {
  return impl_->used.load(std::memory_order_relaxed);
}

}  // namespace limbo
