#include "ipc/sharing.h"
#include "tests/bench/allocator/subjects.h"
#include "tests/bench/allocator/workloads.h"

namespace limbo::bench {
namespace {

struct Core {
  static inline Allocator* allocator = nullptr;
  static void* allocate(std::size_t size_bytes) {
    return allocator->allocate(size_bytes, StreamRef{0, nullptr});
  }
  static void free(void* data) { allocator->free(data); }
};

}  // namespace

std::vector<Measurement> core_rows(Crew& crew) {
  Core::allocator = &process_allocator();
  auto rows = common_rows<Core>(crew, 60);
  for (Measurement& row : rows) row.budget.reset();  // the budgets are of calls through torch
  return rows;
}

}  // namespace limbo::bench
