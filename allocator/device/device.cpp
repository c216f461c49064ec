#include "allocator/device/device.h"

namespace limbo {

std::string to_string(const Uuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text.push_back('-');
    text.push_back(kDigits[uuid.bytes[i] >> 4]);
    text.push_back(kDigits[uuid.bytes[i] & 15]);
  }
  return text;
}

}  // namespace limbo
