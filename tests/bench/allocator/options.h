// The command line of limbo_bench_allocator.
#pragma once

#include <optional>
#include <string>

namespace limbo::bench {

struct AllocatorOptions {
  std::string backend = "limbo";  // which allocator of torch's; ignored for core
  std::string device = "auto";    // "cuda", "simulated", or "auto": cuda where torch sees one
  bool core = false;              // limbo::Allocator itself, without torch
  bool quick = false;
  std::string only;  // rows whose name begins so; empty: all
  std::string json;  // a file; empty: none
};

// Nothing when help was asked for, and given. Throws std::invalid_argument.
[[nodiscard]] std::optional<AllocatorOptions> parse_allocator_options(int argc, char** argv);

}  // namespace limbo::bench
