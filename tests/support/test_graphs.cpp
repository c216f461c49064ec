#include "tests/support/test_graphs.h"

#include <stdexcept>
#include <utility>

#include "allocator/device/sim_device.h"
#include "tests/support/cuda_driver.h"

namespace limbo::testing {
namespace {

class SimTestGraph final : public TestGraph {
 public:
  SimTestGraph(SimDevice& device, std::unique_ptr<SimGraph> graph)
      : device_(device), graph_(std::move(graph)) {}
  void launch(StreamRef stream) override { device_.launch_graph(stream, *graph_); }

 private:
  SimDevice& device_;
  std::unique_ptr<SimGraph> graph_;
};

class SimTestGraphs final : public TestGraphs {
 public:
  explicit SimTestGraphs(SimDevice& device) : device_(device) {}
  void begin(StreamRef stream, bool global) override {
    device_.begin_capture(stream, global ? SimCaptureMode::kGlobal : SimCaptureMode::kRelaxed);
  }
  std::unique_ptr<TestGraph> end(StreamRef stream) override {
    return std::make_unique<SimTestGraph>(device_, device_.end_capture(stream));
  }

 private:
  SimDevice& device_;
};

#ifdef LIMBO_HAVE_CUDA

class CudaTestGraph final : public TestGraph {
 public:
  CudaTestGraph(int device, CUgraphExec graph) : device_(device), graph_(graph) {}
  ~CudaTestGraph() override {
    const CurrentContext current(device_);
    LIMBO_DRIVER_FUNCTION(cuGraphExecDestroy)(graph_);
  }
  void launch(StreamRef stream) override {
    const CurrentContext current(stream.device);
    check_cuda("cuGraphLaunch",
               LIMBO_DRIVER_FUNCTION(cuGraphLaunch)(graph_, static_cast<CUstream>(stream.handle)));
  }

 private:
  const int device_;
  CUgraphExec graph_;
};

class CudaTestGraphs final : public TestGraphs {
 public:
  void begin(StreamRef stream, bool global) override {
    const CurrentContext current(stream.device);
    check_cuda("cuStreamBeginCapture",
               LIMBO_DRIVER_FUNCTION(cuStreamBeginCapture)(
                   static_cast<CUstream>(stream.handle),
                   global ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_RELAXED));
  }
  std::unique_ptr<TestGraph> end(StreamRef stream) override {
    const CurrentContext current(stream.device);
    CUgraph graph = nullptr;
    check_cuda("cuStreamEndCapture", LIMBO_DRIVER_FUNCTION(cuStreamEndCapture)(
                                         static_cast<CUstream>(stream.handle), &graph));
    CUgraphExec executable = nullptr;
    const CUresult made = LIMBO_DRIVER_FUNCTION(cuGraphInstantiateWithFlags)(&executable, graph, 0);
    LIMBO_DRIVER_FUNCTION(cuGraphDestroy)(graph);
    check_cuda("cuGraphInstantiateWithFlags", made);
    return std::make_unique<CudaTestGraph>(stream.device, executable);
  }
};

#endif

}  // namespace

std::unique_ptr<TestGraphs> make_test_graphs(Device& device) {
#ifdef LIMBO_HAVE_CUDA
  if (device.name() == "cuda") return std::make_unique<CudaTestGraphs>();
#endif
  return std::make_unique<SimTestGraphs>(as_sim(device));
}

}  // namespace limbo::testing
