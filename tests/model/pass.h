// What every operation of the producer does under the collect lock and on leaving it.
#pragma once

#include "tests/model/run.h"

namespace limbo::model {

inline std::uint32_t lowest(std::uint32_t bits) {
  std::uint32_t index = 0;
  while ((bits >> index & 1U) == 0) ++index;
  return index;
}

// The segments of a pass: the allocator's list, then each row, then what may be closed.
void absorb(const Run& run, ModelExports& exports, Phase then);
void note(const Run& run, ModelExports& exports);
void choose(const Run& run, ModelExports& exports);
void close(const Run& run, ModelExports& exports);

// Leaving: the unlock, or another pass; then the pins.
void unlock(const Run& run);
void unpin_one(const Run& run);

}  // namespace limbo::model
