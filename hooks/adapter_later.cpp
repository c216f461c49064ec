// What the interface has and this version has not: private pools (CUDA graphs, MemPool),
// checkpoints. README.md lists it; every entry raises the same clear error. Pools that torch made
// before Limbo was installed are released where they were made: their destructors may not throw.
#include "hooks/adapter.h"
#include "hooks/error_text.h"

namespace limbo {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

torch_cuda::CUDAAllocator* Adapter::owner_of_pool(c10::DeviceIndex device,
                                                  c10::MempoolId_t pool) const {
  torch_cuda::CUDAAllocator* replaced = replaced_.load();
  if (replaced == nullptr) return nullptr;
  try {
    return replaced->getPoolUseCount(device, pool) > 0 ? replaced : nullptr;
  } catch (const c10::Error&) {
    return nullptr;  // an allocator without pools
  }
}

void Adapter::beginAllocateToPool(c10::DeviceIndex /*device*/, c10::MempoolId_t /*pool*/,
                                  std::function<bool(cudaStream_t)> /*filter*/) {
  throw_not_available_yet("Allocating to a private pool, as CUDA graphs do (beginAllocateToPool)");
}

void Adapter::endAllocateToPool(c10::DeviceIndex /*device*/, c10::MempoolId_t /*pool*/) {
  throw_not_available_yet("Allocating to a private pool (endAllocateToPool)");
}

void Adapter::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  if (auto* owner = owner_of_pool(device, pool)) return owner->releasePool(device, pool);
  throw_not_available_yet("Releasing a private pool (releasePool)");
}

int Adapter::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  if (auto* owner = owner_of_pool(device, pool)) return owner->getPoolUseCount(device, pool);
  throw_not_available_yet("Counting the users of a private pool (getPoolUseCount)");
}

void Adapter::createOrIncrefPool(c10::DeviceIndex /*device*/, c10::MempoolId_t /*pool*/,
                                 std::shared_ptr<torch_cuda::CUDAAllocator> /*allocator*/) {
  throw_not_available_yet("Making a private pool, as torch.cuda.MemPool does (createOrIncrefPool)");
}

void Adapter::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) {
  if (auto* owner = owner_of_pool(device, pool)) {
    return owner->setUseOnOOM(device, pool, use_on_oom);
  }
  throw_not_available_yet("Falling back to a private pool (setUseOnOOM)");
}

void Adapter::setNoSplit(c10::DeviceIndex /*device*/, c10::MempoolId_t /*pool*/) {
  throw_not_available_yet("A private pool that does not split (setNoSplit)");
}

bool Adapter::checkPoolLiveAllocations(c10::DeviceIndex /*device*/, c10::MempoolId_t /*pool*/,
                                       const std::unordered_set<void*>& /*expected*/) {
  throw_not_available_yet("Checking a private pool (checkPoolLiveAllocations)");
}

std::shared_ptr<torch_cuda::AllocatorState> Adapter::getCheckpointState(c10::DeviceIndex /*device*/,
                                                                        c10::MempoolId_t /*pool*/) {
  throw_not_available_yet("Taking a checkpoint of a private pool (getCheckpointState)");
}

torch_cuda::CheckpointDelta Adapter::setCheckpointPoolState(
    c10::DeviceIndex /*device*/, std::shared_ptr<torch_cuda::AllocatorState> /*state*/) {
  throw_not_available_yet("Going back to a checkpoint (setCheckpointPoolState)");
}

}  // namespace limbo
