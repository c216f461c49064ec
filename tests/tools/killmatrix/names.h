// Names in the kill matrix: a few that all compete for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/tools/killmatrix/arena.h"
#include "tests/tools/killmatrix/gpu_work.h"
#include "tests/tools/killmatrix/mail.h"
#include "tests/tools/killmatrix/random.h"

namespace limbo::killmatrix {

// A message of what somebody publishes, with the letter that its owner has written. Nothing: it is
// not to be had, for a reason that there may be. Throws what there is no reason for.
[[nodiscard]] std::optional<Mail> acquire_any(Diary& diary, Random& random);

// What one thread of a producer publishes.
class Publisher {
 public:
  // The default stream stands behind what is published: it lives, and nobody captures it.
  static constexpr StreamHandle kStream = nullptr;

  Publisher(Diary& diary, Random& random) : diary_(diary), random_(random) {}

  // A block that `kStream` has written.
  void publish(const void* data, std::size_t size_bytes, std::uint32_t canary);
  // False: there is nothing to take back.
  bool unpublish();
  // What is published here is found under its name, and nobody else's.
  void check();
  void unpublish_all();

 private:
  bool unpublish(const std::string& name);

  Diary& diary_;
  Random& random_;
  std::vector<std::string> names_;
};

// For the last process of all: every name is to be had, whoever died with it.
void publish_every_name();

}  // namespace limbo::killmatrix
