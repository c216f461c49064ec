// Options: a name, a unit, a range, a default. Each may be set by the environment variable
// LIMBO_<NAME IN UPPER CASE>, or by set_option. What reads it once and for good fixes it (FixedOptions);
// its meaning says when it is read.
//
// Every layer declares its own specs (`const OptionSpec kMessageTimeLimit{...}`) with
// register_option; option_table() lists all of them, for documentation and error texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace limbo {

struct OptionSpec {
  std::string_view name;  // "message_time_limit_ms"
  std::string_view unit;  // "ms", "bytes", "" for counts and switches
  std::int64_t minimum = 0;
  std::int64_t maximum = 0;
  std::int64_t default_value = 0;
  std::string_view meaning;  // one line, which ends with when the option is read
  std::int64_t multiple_of = 1;
};

// A static object per option: `static const Option kExitDrain({...});` registers it at load time.
class Option {
 public:
  explicit Option(const OptionSpec& spec);
  Option(const Option&) = delete;
  Option& operator=(const Option&) = delete;

  [[nodiscard]] const OptionSpec& spec() const noexcept { return spec_; }

  // The value: set_option's, else the environment's, else the default. Throws kUnknownOption when
  // the environment holds no number or one that the option cannot be. Thread-safe.
  [[nodiscard]] std::int64_t value() const;

  // The same, and the default where value() throws: for those who have nobody to tell.
  [[nodiscard]] std::int64_t value_or_default() const noexcept;

 private:
  OptionSpec spec_;
  std::size_t index_ = 0;  // in the table of all
};

// Throws kUnknownOption for a name that does not exist (the text lists those that do) or a value
// that the option cannot be, kAlreadyInUse for one that is fixed at another value. Takes effect where
// the option is read next.
void set_option(std::string_view name, std::int64_t value);

struct OptionSetting {
  std::string_view name;
  std::optional<std::int64_t> value;  // none: the environment's, else the default
};

// As set_option, for all of them or, where it throws, for none. The result is what they replace, for
// restore_options.
std::vector<OptionSetting> set_options(std::span<const OptionSetting> settings);
void restore_options(std::span<const OptionSetting> before) noexcept;

// Throws kUnknownOption for the first option whose environment variable says what it cannot be, and
// that set_option has not set.
void require_readable_options();

// Whoever reads options once and for good makes this before, and says `stay` when that has come true:
// from now on set_option refuses to change them. Ends before that: they can be changed as before.
// Throws kUnknownOption as Option::value does. Not for two at a time of the same names.
class FixedOptions {
 public:
  // `reader`, for the error's text and for good: "This process's ledger is made".
  FixedOptions(std::initializer_list<std::string_view> names, std::string_view reader);
  ~FixedOptions();
  FixedOptions(const FixedOptions&) = delete;
  FixedOptions& operator=(const FixedOptions&) = delete;

  void stay() noexcept { names_.clear(); }

 private:
  std::vector<std::string_view> names_;
};

struct OptionValue {
  OptionSpec spec;
  std::int64_t value = 0;
};
[[nodiscard]] std::vector<OptionValue> option_table();

}  // namespace limbo
