// Addresses in error texts.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace limbo {

// "0x7f0000000200". Without a stream: an error is thrown in whatever process loads the library, and
// streams need the process's one C++ runtime to be whole.
[[nodiscard]] inline std::string address_text(const void* address) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%p", address);
  return text.data();
}

}  // namespace limbo
