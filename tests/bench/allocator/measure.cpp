#include "tests/bench/allocator/measure.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>
#include <system_error>

#include "tests/support/text_table.h"

namespace limbo::bench {
namespace {

double value_of(const Measurement& row, std::uint64_t count, double seconds) {
  if (row.unit == Unit::kNanoseconds) return seconds * 1e9 / static_cast<double>(count);
  return static_cast<double>(count) * row.threads / seconds / 1e6;
}

// As many operations as take about `seconds`, and at least 16.
std::uint64_t calibrate(const Measurement& row, double seconds) {
  std::uint64_t count = 16;
  static_cast<void>(row.run(count));  // what is done once only is not measured
  while (true) {
    const double took = row.run(count);
    if (took >= seconds / 8 || count >= (std::uint64_t{1} << 30)) {
      const double scaled = static_cast<double>(count) * seconds / std::max(took, 1e-9);
      return std::max<std::uint64_t>(16, static_cast<std::uint64_t>(scaled));
    }
    count *= 4;
  }
}

template <class Call>
void guard(Measurement& row, const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    row.skipped = text.substr(0, text.find('\n'));  // torch's go on with a stack
    row.best.reset();
  }
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

// For programs: with a point, whatever the process's language, and without a stream. This runs as a
// library too, in a process that may have another C++ library, and there what a stream asks for the
// form of a number (the locale's parts) can be the other one's.
std::string json_number(const std::optional<double>& value) {
  if (!value) return "null";
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), *value);
  return error == std::errc() ? std::string(text, end) : "null";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace

bool Measurement::met() const {
  return unit == Unit::kNanoseconds ? *best <= *budget : *best >= *budget;
}

void measure(std::vector<Measurement>& rows, const Pace& pace) {
  std::vector<std::uint64_t> counts(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].run) continue;
    guard(rows[i], [&] { counts[i] = calibrate(rows[i], pace.round_seconds); });
  }
  for (unsigned round = 0; round < pace.rounds; ++round) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Measurement& row = rows[i];
      if (!row.run || !row.skipped.empty()) continue;
      guard(row, [&] {
        const double value = value_of(row, counts[i], row.run(counts[i]));
        if (!row.best) row.best = value;
        row.best = row.unit == Unit::kNanoseconds ? std::min(*row.best, value)
                                                  : std::max(*row.best, value);
      });
    }
  }
}

const char* text_of(Unit unit) {
  return unit == Unit::kNanoseconds ? "ns" : "M/s";
}

std::string table_of(const std::vector<Measurement>& rows) {
  testing::TextTable table({"row", ">value", "unit", ">budget", "met", "what"});
  for (const Measurement& row : rows) {
    const std::string value = row.best ? number(*row.best) : "-";
    std::string met;
    if (row.best && row.budget) met = row.met() ? "yes" : "NO";
    table.add_row({row.name, value, text_of(row.unit), row.budget ? number(*row.budget) : "", met,
                   row.skipped.empty() ? row.what : "NOT MEASURED: " + row.skipped});
  }
  return table.text("  ");
}

std::string json_of(const std::string& backend, const std::string& gpu,
                    const std::vector<Measurement>& rows) {
  std::string out =
      "{\"backend\": " + quoted(backend) + ", \"gpu\": " + quoted(gpu) + ", \"rows\": [";
  const char* separator = "\n";
  for (const Measurement& row : rows) {
    out += separator;
    out += "  {\"name\": " + quoted(row.name) + ", \"what\": " + quoted(row.what);
    out += ", \"unit\": " + quoted(text_of(row.unit)) + ", \"value\": " + json_number(row.best);
    out +=
        ", \"budget\": " + json_number(row.budget) + ", \"skipped\": " + quoted(row.skipped) + "}";
    separator = ",\n";
  }
  return out + "\n]}\n";
}

}  // namespace limbo::bench
