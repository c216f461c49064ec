// Fuzz targets: functions that take any bytes and say whether a rule was broken.
//
// Each *_target.cpp defines one. Under libFuzzer (libfuzzer/entry.cpp) it is a program of its own;
// in the ordinary suite seeds_test.cpp feeds it every kept input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/byte_fields.h"
#include "ipc/sharing.h"

namespace limbo::fuzz {

// A rule was broken; the text is the rule.
class RuleBroken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void require(bool holds, std::string_view rule) {
  if (!holds) throw RuleBroken(std::string(rule));
}

// The input, eaten from the front; numbers are 0 when it is at its end.
class Input {
 public:
  explicit Input(ByteSpan bytes) : left_(bytes.size()), reader_(bytes) {}

  [[nodiscard]] std::size_t left() const noexcept { return left_; }
  template <typename Unsigned = std::uint8_t>
  Unsigned number() noexcept {
    left_ -= left_ < sizeof(Unsigned) ? left_ : sizeof(Unsigned);
    return reader_.number<Unsigned>();
  }
  // 0 to below - 1.
  std::size_t below(std::size_t count) noexcept { return number<std::uint8_t>() % count; }
  // At most `count` bytes.
  ByteSpan bytes(std::size_t count) noexcept {
    const std::size_t taken = count < left_ ? count : left_;
    left_ -= taken;
    return reader_.raw(taken);
  }
  ByteSpan rest() noexcept { return bytes(left_); }

 private:
  std::size_t left_;
  FieldReader reader_;
};

// Throws RuleBroken; any other exception is a broken rule as well.
using Target = void (*)(ByteSpan input);

// Every target that is linked in, by name. A function's static: targets register while statics are
// being made.
inline std::map<std::string, Target, std::less<>>& targets() {
  static std::map<std::string, Target, std::less<>> all;
  return all;
}

struct TargetRegistration {
  TargetRegistration(const char* name, Target target) { targets().emplace(name, target); }
};

#define LIMBO_FUZZ_TARGET(name)                                                            \
  static void limbo_fuzz_##name(::limbo::ByteSpan bytes);                                  \
  [[maybe_unused]] static const ::limbo::fuzz::TargetRegistration limbo_fuzz_entry_##name( \
      #name, &limbo_fuzz_##name);                                                          \
  static void limbo_fuzz_##name(::limbo::ByteSpan bytes)

}  // namespace limbo::fuzz
