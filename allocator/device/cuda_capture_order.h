// CaptureOrder on CUDA: by the nodes of the graph that is being captured.
#pragma once

#ifdef LIMBO_HAVE_CUDA

#include <memory>
#include <span>
#include <vector>

#include "allocator/device/capture_order.h"
#include "allocator/device/cuda_contexts.h"
#include "allocator/device/driver_entry_points.h"

namespace limbo {

// What CudaDevice is besides a device. Both arguments outlive it.
class CudaCaptureOrder : public CaptureOrder {
 public:
  CudaCaptureOrder(const DriverEntryPoints& driver, CudaContexts& contexts);

  [[nodiscard]] std::shared_ptr<const CapturePoint> captured_so_far(
      StreamRef stream) noexcept override;
  [[nodiscard]] std::vector<bool> come_before(
      std::span<const std::shared_ptr<const CapturePoint>> points, StreamRef stream) override;

 private:
  // The capture's id and the nodes that whatever the stream captures next depends on.
  struct Point final : CapturePoint {
    cuuint64_t capture_id = 0;
    std::vector<CUgraphNode> nodes;
  };
  // By its versioned name: newer headers map the plain one to a function with more arguments.
  using DependenciesFunction = CUresult (*)(CUgraphNode node, CUgraphNode* dependencies,
                                            std::size_t* count);

  // False where the stream is not being captured, or the driver cannot tell.
  [[nodiscard]] bool look(StreamRef stream, Point& point);
  // Empty also where the driver does not say.
  [[nodiscard]] std::vector<CUgraphNode> dependencies_of(CUgraphNode node) const;

  const DriverEntryPoints& capture_driver_;
  CudaContexts& capture_contexts_;
  const DependenciesFunction dependencies_;
};

}  // namespace limbo

#endif
