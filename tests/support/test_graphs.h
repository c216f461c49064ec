// Graphs that tests capture on every device.
#pragma once

#include <memory>

#include "allocator/device/device.h"

namespace limbo::testing {

// A captured graph, ready to be launched. Its destructor destroys it.
class TestGraph {
 public:
  virtual ~TestGraph() = default;
  virtual void launch(StreamRef stream) = 0;
};

class TestGraphs {
 public:
  virtual ~TestGraphs() = default;

  // Global: calls of other threads that have not asked for relaxed mode are refused and invalidate
  // the capture.
  virtual void begin(StreamRef stream, bool global) = 0;
  // Throws when the capture was invalidated.
  [[nodiscard]] virtual std::unique_ptr<TestGraph> end(StreamRef stream) = 0;
};

[[nodiscard]] std::unique_ptr<TestGraphs> make_test_graphs(Device& device);

}  // namespace limbo::testing
