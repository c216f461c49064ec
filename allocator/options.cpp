#include "allocator/options.h"

#include <pthread.h>

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
  std::optional<std::int64_t> set{};
  std::optional<std::int64_t> fixed{};  // somebody has read this value for good
  std::string_view fixed_by{};          // who
};

struct Table {
  std::mutex mutex;            // guards entries; nothing that waits is called under it
  std::vector<Entry> entries;  // only added to
};

Table& table();

// So that the child's copy of the lock is free.
void before_fork() noexcept {
  table().mutex.lock();
}
void after_fork() noexcept {
  table().mutex.unlock();
}

// Never destroyed: options are read during static destruction too.
Table& table() {
  static auto* made = [] {
    ::pthread_atfork(before_fork, after_fork, after_fork);
    return new Table;
  }();
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
  if (spec.multiple_of != 1) text += ", a multiple of " + std::to_string(spec.multiple_of);
  if (!spec.unit.empty()) text += " (" + std::string(spec.unit) + ")";
  return text + ".";
}

bool can_be(const OptionSpec& spec, std::int64_t value) {
  return value >= spec.minimum && value <= spec.maximum && value % spec.multiple_of == 0;
}

std::int64_t resolve(const Entry& entry) {
  if (entry.fixed) return *entry.fixed;
  if (entry.set) return *entry.set;
  const char* text = std::getenv(entry.variable.c_str());
  if (text == nullptr || *text == '\0') return entry.spec.default_value;
  const std::string_view view(text);
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (failure != std::errc{} || end != view.data() + view.size() || !can_be(entry.spec, value)) {
    throw Error(ErrorCode::kUnknownOption, entry.variable + " is \"" + std::string(view) + "\".",
                range_text(entry.spec));
  }
  return value;
}

Entry* find_entry(Table& where, std::string_view name) {
  const auto found = std::find_if(where.entries.begin(), where.entries.end(),
                                  [&](const Entry& entry) { return entry.spec.name == name; });
  return found == where.entries.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_name(const Table& where, std::string_view name) {
  std::string known;
  for (const Entry& entry : where.entries) known += " " + std::string(entry.spec.name);
  throw Error(ErrorCode::kUnknownOption, "There is no option \"" + std::string(name) + "\".",
              "There are:" + known + ".");
}

void require_settable(const Entry& entry, std::optional<std::int64_t> value) {
  const std::string name(entry.spec.name);
  if (value && !can_be(entry.spec, *value)) {
    throw Error(ErrorCode::kUnknownOption,
                "Option " + name + " cannot be " + std::to_string(*value) + ".",
                range_text(entry.spec));
  }
  if (!entry.fixed || !value || value == entry.fixed) return;
  throw Error(ErrorCode::kAlreadyInUse,
              std::string(entry.fixed_by) + ", and option " + name + " stays " +
                  std::to_string(*entry.fixed) + ".",
              "Set it before that, or by " + entry.variable + " in the environment.");
}

}  // namespace

Option::Option(const OptionSpec& spec) : spec_(spec) {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  const Entry* entry = find_entry(where, spec.name);
  index_ = entry != nullptr ? static_cast<std::size_t>(entry - where.entries.data())
                            : where.entries.size();
  if (entry == nullptr) {
    where.entries.push_back({.spec = spec, .variable = variable_name(spec.name)});
  }
}

std::int64_t Option::value() const {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  return resolve(where.entries[index_]);
}

std::int64_t Option::value_or_default() const noexcept {
  try {
    return value();
  } catch (const std::exception&) {
    return spec_.default_value;
  }
}

void set_option(std::string_view name, std::int64_t value) {
  const OptionSetting setting{name, value};
  set_options({&setting, 1});
}

std::vector<OptionSetting> set_options(std::span<const OptionSetting> settings) {
  Table& where = table();
  std::vector<OptionSetting> before;
  const std::lock_guard lock(where.mutex);
  for (const OptionSetting& setting : settings) {
    const Entry* entry = find_entry(where, setting.name);
    if (entry == nullptr) refuse_name(where, setting.name);
    require_settable(*entry, setting.value);
    before.push_back({entry->spec.name, entry->set});
  }
  for (const OptionSetting& setting : settings)
    find_entry(where, setting.name)->set = setting.value;
  return before;
}

void restore_options(std::span<const OptionSetting> before) noexcept {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  for (auto former = before.rbegin(); former != before.rend(); ++former) {
    find_entry(where, former->name)->set = former->value;
  }
}

void require_readable_options() {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  for (const Entry& entry : where.entries) (void)resolve(entry);
}

FixedOptions::FixedOptions(std::initializer_list<std::string_view> names, std::string_view reader)
    : names_(names) {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  std::vector<std::int64_t> values;
  for (const std::string_view name : names_) values.push_back(resolve(*find_entry(where, name)));
  for (std::size_t index = 0; index < names_.size(); ++index) {
    Entry& entry = *find_entry(where, names_[index]);
    entry.fixed = values[index];
    entry.fixed_by = reader;
  }
}

FixedOptions::~FixedOptions() {
  Table& where = table();
  const std::lock_guard lock(where.mutex);
  for (const std::string_view name : names_) find_entry(where, name)->fixed.reset();
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
