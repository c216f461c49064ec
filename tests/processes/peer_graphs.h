// What a peer does with graphs, and what it says about its device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "allocator/capture_gate.h"
#include "tests/support/test_graphs.h"
#include "tests/support/test_kernels.h"

namespace limbo::testing {

class PeerGraphs {
 public:
  // The answer; nothing when the command is another's. `stream`: the one in use.
  [[nodiscard]] std::optional<std::string> run(const std::string& command,
                                               std::istringstream& words, StreamRef stream);
  // A capture of `stream` begins, by a program that says so, while another thread makes a call of that
  // kind, which `cause` leads to.
  void begin_during(const std::string& kind, const std::function<void()>& cause, StreamRef stream);

 private:
  TestGraphs& graphs();
  // Loads what loses the device's context. Waits for the device: also for what others do that its
  // streams wait for.
  void prepare_to_lose(int device);
  // False: the context is still there.
  bool lose_context(StreamRef stream);

  std::unique_ptr<TestGraphs> graphs_;
  std::map<std::string, std::unique_ptr<TestGraph>> captured_;
  std::optional<BeginningCapture> announced_;
  std::unique_ptr<TestKernels> kernels_;
  std::set<int> prepared_;
};

}  // namespace limbo::testing
