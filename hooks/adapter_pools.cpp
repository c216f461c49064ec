// Private pools (CUDA graphs, torch.cuda.MemPool) and their checkpoints (cudagraph trees).
//
// Pools that torch made before Limbo was installed are counted and released where they were made,
// and in a process that was forked from one that used the device nothing happens to pools: their
// destructors may not throw.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "allocator/capture_gate.h"
#include "allocator/provider_foreign.h"
#include "hooks/adapter.h"
#include "hooks/current_stream.h"
#include "hooks/error_text.h"
#include "hooks/process.h"
#include "hooks/stock_loading.h"

namespace limbo {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

namespace {

PoolId to_pool_id(c10::MempoolId_t pool) {
  return {pool.first, pool.second};
}

// Makes `device` the thread's own, and the thread's calls such that no capture minds them.
class PoolMemoryScope {
 public:
  explicit PoolMemoryScope(int device) {
    if (simulated()) {
      device_before_ = set_simulated_device(device);
      return;
    }
    guard_.emplace(static_cast<c10::DeviceIndex>(device));
    C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_));
  }
  ~PoolMemoryScope() {
    if (simulated()) {
      set_simulated_device(device_before_);
    } else {
      // What fails here has failed before, or is the next call's to report.
      static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
    }
  }
  PoolMemoryScope(const PoolMemoryScope&) = delete;
  PoolMemoryScope& operator=(const PoolMemoryScope&) = delete;

 private:
  int device_before_ = 0;
  std::optional<c10::cuda::CUDAGuard> guard_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Memory of the maker; null where it has no room. The runtime remembers the refusal and would report
// it at the thread's next check of a kernel: it is forgotten here, where it is dealt with.
void* ask_maker(torch_cuda::CUDAAllocator& maker, std::size_t size_bytes) {
  void* memory = nullptr;
  try {
    memory = maker.raw_alloc(size_bytes);
  } catch (const c10::OutOfMemoryError&) {  // as null
  }
  if (memory == nullptr && !simulated()) static_cast<void>(cudaGetLastError());
  return memory;
}

// Keeps the allocator for as long as the pool has memory of it.
std::shared_ptr<Provider> make_provider(const std::shared_ptr<torch_cuda::CUDAAllocator>& maker) {
  return std::make_shared<ProviderForeign>(
      [maker](int device, std::size_t size_bytes) -> void* {
        const PoolMemoryScope scope(device);
        return ask_maker(*maker, size_bytes);
      },
      [maker](int device, void* memory) {
        const PoolMemoryScope scope(device);
        maker->raw_delete(memory);
      });
}

// Which stream tells whether a route is a capture. It is asked for as long as the route stands, and
// one that is never ended stands for good: a stream that may be destroyed by then is not asked. Then
// the route of a capture counts as one (no stream), and any other as none (the default stream).
std::optional<StreamHandle> stream_to_ask(StreamRef current, bool is_of_capture) {
  if (is_torchs_own(current)) return current.handle;
  return is_of_capture ? std::nullopt : std::optional<StreamHandle>(nullptr);
}

capture_gate::StreamLives life_of(StreamRef current) {
  return is_torchs_own(current) ? capture_gate::StreamLives::kUntilWithdrawn  // and for good
                                : capture_gate::StreamLives::kNobodyKnows;
}

// What the calling thread has announced: torch begins the capture right behind that, in the same
// thread. 0: nothing.
thread_local constinit std::uint64_t announced = 0;

// torch says nothing when the beginning fails. But a thread that comes here again is past it: either
// way it is over.
void end_announcement() noexcept {
  if (announced != 0) capture_gate::withdraw(std::exchange(announced, 0));
}

// A checkpoint, as torch hands it around.
struct PoolState final : torch_cuda::AllocatorState {
  explicit PoolState(std::shared_ptr<const Checkpoint> made) : checkpoint(std::move(made)) {}
  const std::shared_ptr<const Checkpoint> checkpoint;
};

}  // namespace

torch_cuda::CUDAAllocator* Adapter::owner_of_pool(c10::DeviceIndex device,
                                                  c10::MempoolId_t pool) const {
  torch_cuda::CUDAAllocator* replaced = replaced_.load();
  if (replaced == nullptr || own_pool_uses(device, pool) > 0) return nullptr;
  try {
    return replaced->getPoolUseCount(device, pool) > 0 ? replaced : nullptr;
  } catch (const c10::Error&) {
    return nullptr;  // an allocator without pools
  }
}

int Adapter::own_pool_uses(c10::DeviceIndex device, c10::MempoolId_t pool) {
  if (!in_use()) return 0;
  return for_torch([&] { return allocator_in_use().pool_use_count(device, to_pool_id(pool)); });
}

// ---- pools --------------------------------------------------------------------------------------

void Adapter::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                 std::shared_ptr<torch_cuda::CUDAAllocator> allocator) {
  for_torch([&] {
    // Whose memory is to be Limbo's is a pool like others.
    if (allocator == nullptr || is_limbo(*allocator)) {
      allocator_in_use().retain_pool(device, to_pool_id(pool));
      return;
    }
    allocator_in_use().retain_pool(device, to_pool_id(pool), make_provider(allocator));
  });
}

void Adapter::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  if (in_forked_child()) return;
  if (auto* owner = owner_of_pool(device, pool)) return owner->releasePool(device, pool);
  for_torch([&] { allocator_in_use().release_pool(device, to_pool_id(pool)); });
}

int Adapter::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  // What a pool's destructor asserts: the one use that is the pool object's.
  if (in_forked_child()) return 1;
  if (auto* owner = owner_of_pool(device, pool)) return owner->getPoolUseCount(device, pool);
  return own_pool_uses(device, pool);
}

void Adapter::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) {
  if (in_forked_child()) return;
  if (auto* owner = owner_of_pool(device, pool)) {
    return owner->setUseOnOOM(device, pool, use_on_oom);
  }
  for_torch([&] { allocator_in_use().set_use_on_oom(device, to_pool_id(pool), use_on_oom); });
}

void Adapter::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) {
  for_torch([&] { allocator_in_use().set_no_split(device, to_pool_id(pool)); });
}

void Adapter::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                  std::function<bool(cudaStream_t)> filter) {
  for_torch([&] {
    // A graph's capture begins its route on the stream that it then captures.
    const StreamRef current = current_stream(device);
    std::function<bool(StreamHandle)> accepts;
    bool announces = false;
    if (filter != nullptr) {
      // Asked for every allocation while the route stands.
      accepts = [asked = std::move(filter), device](StreamHandle stream) {
        end_announcement();
        const bool accepted = asked(static_cast<cudaStream_t>(stream));
        if (accepted) capture_gate::begun({device, stream});
        return accepted;
      };
      // The filter of a capture accepts what is being captured into its graph: nothing yet. (Those
      // of MemPools accept what their thread, or its stream, allocates.)
      announces = !accepts(current.handle);
    }
    allocator_in_use().begin_allocate_to_pool(device, to_pool_id(pool), std::move(accepts),
                                              stream_to_ask(current, announces));
    // torch begins the capture next. Where that fails the announcement ends when this thread comes back
    // (or by itself), and the program may destroy a stream of its own before.
    if (announces) announced = capture_gate::announce(current, life_of(current));
  });
}

void Adapter::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  if (in_forked_child()) return;
  for_torch([&] {
    end_announcement();
    capture_gate::ended(current_stream(device));
    allocator_in_use().end_allocate_to_pool(device, to_pool_id(pool));
  });
}

bool Adapter::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                       const std::unordered_set<void*>& expected) {
  return for_torch([&] {
    const std::vector<void*> live =
        allocator_in_use().pool_live_allocations(device, to_pool_id(pool));
    return live.size() == expected.size() && std::all_of(live.begin(), live.end(), [&](void* data) {
             return expected.count(data) != 0;
           });
  });
}

// Every device's part of it: MemPool does not say which one it means.
void Adapter::emptyCache(c10::MempoolId_t pool) {
  end_announcement();
  const PoolId id = to_pool_id(pool);
  if (!in_use() || (!id.is_default() && in_forked_child())) return;
  for_torch([&] {
    auto& allocator = allocator_in_use();
    if (id.is_default()) {
      allocator.empty_cache();
      return;
    }
    const int count = allocator.device().device_count();
    for (int device = 0; device < count; ++device) allocator.empty_cache(device, id);
  });
}

// ---- checkpoints --------------------------------------------------------------------------------

std::shared_ptr<torch_cuda::AllocatorState> Adapter::getCheckpointState(c10::DeviceIndex device,
                                                                        c10::MempoolId_t pool) {
  return for_torch([&]() -> std::shared_ptr<torch_cuda::AllocatorState> {
    return std::make_shared<PoolState>(
        allocator_in_use().take_checkpoint(device, to_pool_id(pool)));
  });
}

torch_cuda::CheckpointDelta Adapter::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<torch_cuda::AllocatorState> state) {
  return for_torch([&] {
    const auto* known = dynamic_cast<const PoolState*>(state.get());
    if (known == nullptr) {
      throw Error(ErrorCode::kBadArgument, "This state was not made by Limbo's getCheckpointState.",
                  "Take the checkpoint after Limbo was installed.");
    }
    const Checkpoint& checkpoint = *known->checkpoint;
    if (checkpoint.device != device) {
      throw Error(ErrorCode::kBadArgument,
                  "This state is of device " + std::to_string(checkpoint.device) +
                      " and was to be set on device " + std::to_string(device) + ".",
                  "Go back on the device that the checkpoint was taken on.");
    }
    CheckpointDelta done = allocator_in_use().restore_checkpoint(checkpoint);
    torch_cuda::CheckpointDelta delta;
    delta.ptrs_freed = std::move(done.freed);
    for (void* data : done.allocated) {
      delta.dataptrs_allocd.emplace_back(data, data, &delete_block,
                                         c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
  });
}

}  // namespace limbo
