#include "allocator/device/cuda_capture_order.h"

#ifdef LIMBO_HAVE_CUDA

#include <algorithm>
#include <unordered_set>

namespace limbo {

CudaCaptureOrder::CudaCaptureOrder(const DriverEntryPoints& driver, CudaContexts& contexts)
    : capture_driver_(driver),
      capture_contexts_(contexts),
      dependencies_(reinterpret_cast<DependenciesFunction>(
          find_driver_symbol("cuGraphNodeGetDependencies"))) {}

bool CudaCaptureOrder::look(StreamRef stream, Point& point) {
  if (dependencies_ == nullptr || capture_driver_.cuStreamGetCaptureInfo_v2 == nullptr)
    return false;
  const CudaCallScope scope(capture_contexts_, stream.device);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  std::size_t count = 0;
  const CUresult asked = capture_driver_.cuStreamGetCaptureInfo_v2(
      static_cast<CUstream>(stream.handle), &status, &point.capture_id, &graph, &nodes, &count);
  if (asked != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return false;
  // The array is the driver's, and good until the stream's next call.
  point.nodes.assign(nodes, nodes + count);
  return true;
}

std::vector<CUgraphNode> CudaCaptureOrder::dependencies_of(CUgraphNode node) const {
  std::size_t count = 0;
  if (dependencies_(node, nullptr, &count) != CUDA_SUCCESS || count == 0) return {};
  std::vector<CUgraphNode> before(count);
  if (dependencies_(node, before.data(), &count) != CUDA_SUCCESS) return {};
  before.resize(std::min(before.size(), count));
  return before;
}

std::shared_ptr<const CapturePoint> CudaCaptureOrder::captured_so_far(StreamRef stream) noexcept {
  try {
    auto point = std::make_shared<Point>();
    return look(stream, *point) ? point : nullptr;
  } catch (...) {  // it cannot be told
    return nullptr;
  }
}

std::vector<bool> CudaCaptureOrder::come_before(
    std::span<const std::shared_ptr<const CapturePoint>> points, StreamRef stream) {
  std::vector<bool> answers(points.size(), false);
  Point now;
  if (!look(stream, now)) return answers;
  // Everything that the stream's next node depends on, directly or not.
  std::unordered_set<CUgraphNode> before(now.nodes.begin(), now.nodes.end());
  std::vector<CUgraphNode> open = now.nodes;
  while (!open.empty()) {
    const CUgraphNode node = open.back();
    open.pop_back();
    for (const CUgraphNode next : dependencies_of(node)) {
      if (before.insert(next).second) open.push_back(next);
    }
  }
  for (std::size_t index = 0; index < points.size(); ++index) {
    const auto* point = dynamic_cast<const Point*>(points[index].get());
    answers[index] = point != nullptr && point->capture_id == now.capture_id &&
                     std::all_of(point->nodes.begin(), point->nodes.end(),
                                 [&](CUgraphNode node) { return before.contains(node); });
  }
  return answers;
}

}  // namespace limbo

#endif
