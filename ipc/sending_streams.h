// The streams that a send stands behind, each once: that of the sending thread first, then the one that
// has waited for all earlier work on the block (its home, or who has received it), then further ones
// that have received it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "allocator/device/device.h"

namespace limbo {

class SendingStreams {
 public:
  void add(StreamRef stream) {
    const std::span<const StreamRef> known = all();
    if (std::find(known.begin(), known.end(), stream) != known.end()) return;
    if (count_ < few_.size()) {
      few_[count_++] = stream;
      return;
    }
    if (many_.empty()) many_.assign(few_.begin(), few_.end());
    many_.push_back(stream);
  }
  [[nodiscard]] std::span<const StreamRef> all() const noexcept {
    if (!many_.empty()) return many_;
    return {few_.data(), count_};
  }

 private:
  // As a rule there are no more, and nothing is allocated for them.
  std::array<StreamRef, 3> few_;
  std::size_t count_ = 0;
  std::vector<StreamRef> many_;  // all of them, where there are
};

}  // namespace limbo
