// The complete allocator interface of torch over limbo::Allocator.
//
// One object per process, never destroyed. A DataPtr's context is its pointer, and its deleter is
// one fixed function, as torch's cudagraph trees require.
//
// Thread-safe. In a process forked after its parent's first use, frees do nothing and everything
// that needs the device throws.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "allocator/allocator.h"
#include "hooks/stock_handles.h"
#include "hooks/uncached.h"

namespace limbo {

class Adapter final : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  Adapter() = default;

  // What every DataPtr of Limbo is deleted by. Throws nothing: a wrong free is reported on stderr.
  static void delete_block(void* data) noexcept;

  // Gives out and takes back memory, as raw_alloc and raw_delete do, on a stream named by Limbo's
  // own words (for limbo_malloc and limbo_free).
  [[nodiscard]] void* take(std::size_t size_bytes, StreamRef stream);
  void give(void* data);

  // Notes that `data` is used on `stream`, whoever owns it: a block of ours, received memory, or
  // neither (then nothing happens). False for neither.
  static bool record_use(const c10::DataPtr& data, StreamRef stream);

  // While true, initialized() says no: torch changes only an allocator that is not.
  void hide_initialization(bool hide) noexcept { hidden_.store(hide); }

  // What init does to this object, without torch: nothing is started, and nobody is asked how many
  // devices there are, so that it may come long before torch starts CUDA, or behind that.
  void take_over_initialization();

  // Sets the settings' memory fraction, if one was settled by then, on `starting`: this process's
  // allocator, while it is made.
  void limit_at_start(limbo::Allocator& starting);

  // Notes the initialised allocator that this one has taken the place of: private pools that were
  // made before are its own, and are counted and released there.
  void note_replaced(CUDAAllocator* replaced) noexcept { replaced_.store(replaced); }

  // Notes another plug-in that this one takes the place of, if only for a moment, and that is never
  // destroyed. torch frees a plug-in's tensors by raw_delete of whoever has that place by then; what
  // is not of Limbo is handed on.
  void note_plug_in(CUDAAllocator* plug_in) noexcept { plug_in_.store(plug_in); }

  // ---- c10::Allocator and c10::DeviceAllocator (adapter.cpp) ------------------------------------
  c10::DataPtr allocate(std::size_t size_bytes) override;
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t size_bytes) const override;
  bool initialized() override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;

  // ---- CUDAAllocator: memory (adapter.cpp) ------------------------------------------------------
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void* raw_alloc(std::size_t size_bytes) override;
  void* raw_alloc_with_stream(std::size_t size_bytes, cudaStream_t stream) override;
  void raw_delete(void* data) override;
  void init(int device_count) override;
  void enable(bool value) override;
  [[nodiscard]] bool isEnabled() const override;
  void* getBaseAllocation(void* data, std::size_t* size_bytes) override;
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* data) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex device_to_access) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t size_bytes, cudaStream_t stream, bool p2p_enabled) override;
  std::string name() override { return "limbo"; }

  // ---- CUDAAllocator: numbers and limits (adapter_numbers.cpp) ----------------------------------
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest_bytes) override;
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override;

  // ---- CUDAAllocator: history, snapshots (adapter_history.cpp) ----------------------------------
  bool isHistoryEnabled() override;
  void recordHistory(bool enabled,
                     c10::cuda::CUDACachingAllocator::CreateContextFn context_recorder,
                     std::size_t max_entries, c10::cuda::CUDACachingAllocator::RecordContext when,
                     bool clear_history, const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& notes) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override;
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override;
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(c10::MempoolId_t pool,
                                                         bool include_traces) override;

  // ---- CUDAAllocator: pools, checkpoints (adapter_pools.cpp) ------------------------------------
  void emptyCache(c10::MempoolId_t pool) override;
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void createOrIncrefPool(
      c10::DeviceIndex device, c10::MempoolId_t pool,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(
      c10::DeviceIndex device, c10::MempoolId_t pool) override;
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state) override;

 private:
  [[nodiscard]] bool caching() const noexcept;

  // Everything that take and give do not leave to the allocator at once: see plain_allocator.
  [[nodiscard]] void* take_with_care(std::size_t size_bytes, StreamRef stream);
  void give_with_care(void* data);
  // Whether this memory is another plug-in's, as far as can be told.
  [[nodiscard]] bool is_foreign(void* data);
  // To be called after whatever may change it.
  void update_plain_allocator();
  // The settings' fraction is as it is now, as in torch's own when it is initialised: it is set at
  // once where the allocator has started, else when it does.
  void settle_fraction();
  void set_fraction(double fraction, int device);
  void limit(limbo::Allocator& allocator, double fraction, int device);
  // Uses of the pool that is Limbo's; 0 where there is none.
  [[nodiscard]] static int own_pool_uses(c10::DeviceIndex device, c10::MempoolId_t pool);
  // The replaced allocator if it has this pool and Limbo has not, else null.
  [[nodiscard]] CUDAAllocator* owner_of_pool(c10::DeviceIndex device, c10::MempoolId_t pool) const;

  std::atomic<bool> initialized_{false};
  std::atomic<bool> hidden_{false};
  std::atomic<bool> enabled_{true};
  std::atomic<CUDAAllocator*> replaced_{nullptr};
  std::atomic<CUDAAllocator*> plug_in_{nullptr};
  UncachedMemory uncached_;
  std::mutex plain_mutex_;  // one change of the plain allocator at a time; a leaf
  StockMappings mappings_;

  std::mutex fractions_mutex_;     // guards the next three; a leaf
  std::vector<double> fractions_;  // by device; missing: 1
  double settled_fraction_ = 1;    // the settings' own
  bool started_ = false;           // the allocator has it, or is just getting it
};

// This process's one.
[[nodiscard]] Adapter& adapter();

// The same with an owner that never deletes, as torch's Python object wants it.
[[nodiscard]] std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> shared_adapter();

}  // namespace limbo
