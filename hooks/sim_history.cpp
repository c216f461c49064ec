#include "hooks/sim_history.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <map>
#include <memory>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/process.h"

namespace limbo {
namespace {

using c10::cuda::CUDACachingAllocator::RecordContext;

// As torch's recorder for stacks="python".
std::shared_ptr<c10::GatheredContext> gather_python_stack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false);
}

}  // namespace

void sim_record_history(std::optional<std::string> contexts, std::int64_t max_entries) {
  if (!simulated()) {
    throw Error(ErrorCode::kBadArgument, "sim_record_history works on the simulated device only.",
                "Use torch.cuda.memory._record_memory_history.");
  }
  if (!contexts) {
    adapter().recordHistory(false, nullptr, 1, RecordContext::NEVER, false, {});
    return;
  }
  static const std::map<std::string, RecordContext, std::less<>> levels = {
      {"none", RecordContext::NEVER},
      {"state", RecordContext::STATE},
      {"alloc", RecordContext::ALLOC},
      {"all", RecordContext::ALL}};
  const auto level = levels.find(*contexts);
  if (level == levels.end() || max_entries < 1) {
    throw Error(ErrorCode::kBadArgument,
                "There is no history with contexts \"" + *contexts + "\" and " +
                    std::to_string(max_entries) + " entries.",
                "Use none, state, alloc or all, and at least 1.");
  }
  adapter().recordHistory(true, &gather_python_stack, static_cast<std::size_t>(max_entries),
                          level->second, false, {});
}

}  // namespace limbo
