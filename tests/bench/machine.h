// Where the numbers come from.
#pragma once

#include <string>

namespace limbo::bench {

struct Machine {
  std::string cpu;
  unsigned cores = 0;
  std::string kernel;
  std::string gpu;     // its name, or "simulated"
  std::string driver;  // the highest version of CUDA that it offers; empty without one
  std::string build;   // the compiler, and whether it optimised
};

[[nodiscard]] Machine this_machine();

}  // namespace limbo::bench
