// What a peer does with graphs, and what it says about its device.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "tests/support/test_graphs.h"

namespace limbo::testing {

class PeerGraphs {
 public:
  // The answer; nothing when the command is another's. `stream`: the one in use.
  [[nodiscard]] std::optional<std::string> run(const std::string& command,
                                               std::istringstream& words, StreamRef stream);

 private:
  TestGraphs& graphs();

  std::unique_ptr<TestGraphs> graphs_;
  std::map<std::string, std::unique_ptr<TestGraph>> captured_;
};

}  // namespace limbo::testing
