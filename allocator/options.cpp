#include "allocator/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <optional>

#include "allocator/error.h"

namespace limbo {
namespace {

struct Entry {
  OptionSpec spec;
  std::string variable;  // of the environment
  std::optional<std::int64_t> set;
};

struct Table {
  std::mutex mutex;            // guards entries; nothing that waits is called under it
  std::vector<Entry> entries;  // only added to
};

// Never destroyed: options are read during static destruction too.
Table& table() {
  static auto* made = new Table;
  return *made;
}

std::string variable_name(std::string_view name) {
  std::string variable = "LIMBO_";
  for (const char c : name) {
    variable += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

std::string range_text(const OptionSpec& spec) {
  std::string text = "Use a whole number from " + std::to_string(spec.minimum) + " to " +
                     std::to_string(spec.maximum);
  if (!spec.unit.empty()) text += " (" + std::string(spec.unit) + ")";
  return text + ".";
}

void check_range(const OptionSpec& spec, std::int64_t value) {
  if (value >= spec.minimum && value <= spec.maximum) return;
  throw Error(ErrorCode::kUnknownOption,
              "Option " + std::string(spec.name) + " cannot be " + std::to_string(value) + ".",
              range_text(spec));
}

std::int64_t resolve(const Entry& entry) {
  if (entry.set) return *entry.set;
  const char* text = std::getenv(entry.variable.c_str());
  if (text == nullptr || *text == '\0') return entry.spec.default_value;
  const std::string_view view(text);
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (failure != std::errc{} || end != view.data() + view.size()) {
    throw Error(ErrorCode::kUnknownOption, entry.variable + " is \"" + std::string(view) + "\".",
                range_text(entry.spec));
  }
  check_range(entry.spec, value);
  return value;
}

Entry* find_entry(Table& where, std::string_view name) {
  const auto found = std::find_if(where.entries.begin(), where.entries.end(),
                                  [&](const Entry& entry) { return entry.spec.name == name; });
  return found == where.entries.end() ? nullptr : &*found;
}

}  // namespace

Option::Option(const OptionSpec& spec) : spec_(spec) {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  const Entry* entry = find_entry(where, spec.name);
  index_ = entry != nullptr ? static_cast<std::size_t>(entry - where.entries.data())
                            : where.entries.size();
  if (entry == nullptr) {
    where.entries.push_back({spec, variable_name(spec.name), std::nullopt});
  }
}

std::int64_t Option::value() const {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  return resolve(where.entries[index_]);
}

void set_option(std::string_view name, std::int64_t value) {
  Table& where = table();
  std::string known;
  {
    const std::lock_guard lock(where.mutex);
    if (Entry* entry = find_entry(where, name)) {
      check_range(entry->spec, value);
      entry->set = value;
      return;
    }
    for (const Entry& entry : where.entries) known += " " + std::string(entry.spec.name);
  }
  throw Error(ErrorCode::kUnknownOption, "There is no option \"" + std::string(name) + "\".",
              "There are:" + known + ".");
}

std::vector<OptionValue> option_table() {
  Table& where = table();
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(where.mutex);
    entries = where.entries;
  }
  std::vector<OptionValue> values;
  values.reserve(entries.size());
  for (const Entry& entry : entries) values.push_back({entry.spec, resolve(entry)});
  return values;
}

}  // namespace limbo
