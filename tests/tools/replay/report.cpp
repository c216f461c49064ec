#include "tests/tools/replay/report.h"

#include <array>
#include <cstdio>

#include "tests/support/text_table.h"

namespace limbo::replay {
namespace {

using testing::in_mib;

std::string fixed(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

double ratio(std::size_t bytes, const Result& result) {
  return result.requested_bytes == 0
             ? 0
             : static_cast<double>(bytes) / static_cast<double>(result.requested_bytes);
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + "\"";
}

}  // namespace

std::string table_of(const std::vector<Result>& results) {
  testing::TextTable table({"trace", ">events", ">requested MiB", ">reserved MiB", ">ratio",
                            ">ns/event", ">limit MiB", ">ratio", ""});
  for (const Result& result : results) {
    const auto limit = result.smallest_limit_bytes ? result.smallest_limit_bytes
                                                   : std::optional<std::size_t>(result.limit_bytes);
    const bool has_limit = limit.value_or(0) != 0;
    table.add_row({result.trace, std::to_string(result.events), in_mib(result.requested_bytes),
                   in_mib(result.run.peak_reserved_bytes),
                   fixed(ratio(result.run.peak_reserved_bytes, result), 3),
                   fixed(result.run.ns_per_event, 0), has_limit ? in_mib(*limit) : "-",
                   has_limit ? fixed(ratio(*limit, result), 3) : "-",
                   result.run.completed ? "completed" : "OUT OF MEMORY"});
  }
  return table.text("");
}

std::string json_of(const Result& result, const std::string& device, const std::string& backend) {
  std::string json =
      "{\"trace\":" + quoted(result.trace) + ",\"device\":" + quoted(device) +
      ",\"backend\":" + quoted(backend) + ",\"threads\":" + std::to_string(result.threads) +
      ",\"events\":" + std::to_string(result.events) +
      ",\"requested_bytes\":" + std::to_string(result.requested_bytes) +
      ",\"completed\":" + (result.run.completed ? "true" : "false") +
      ",\"reserved_bytes\":" + std::to_string(result.run.peak_reserved_bytes) +
      ",\"reserved_ratio\":" + fixed(ratio(result.run.peak_reserved_bytes, result), 6) +
      ",\"ns_per_event\":" + fixed(result.run.ns_per_event, 1);
  if (result.limit_bytes != 0) json += ",\"limit_bytes\":" + std::to_string(result.limit_bytes);
  if (result.smallest_limit_bytes) {
    json += ",\"smallest_limit_bytes\":" + std::to_string(*result.smallest_limit_bytes) +
            ",\"smallest_limit_ratio\":" + fixed(ratio(*result.smallest_limit_bytes, result), 6);
  }
  return json + "}";
}

}  // namespace limbo::replay
