// Options: a name, a unit, a range, a default. Each may be set by the environment variable
// LIMBO_<NAME IN UPPER CASE>, or by set_option before it is first read.
//
// Every layer declares its own specs (`const OptionSpec kMessageTimeLimit{...}`) with
// register_option; option_table() lists all of them, for documentation and error texts.
#pragma once

#include <cstddef>
#include <cstdint>
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
  std::string_view meaning;  // one line
};

// A static object per option: `static const Option kExitDrain({...});` registers it at load time.
class Option {
 public:
  explicit Option(const OptionSpec& spec);
  Option(const Option&) = delete;
  Option& operator=(const Option&) = delete;

  [[nodiscard]] const OptionSpec& spec() const noexcept { return spec_; }

  // The value: set_option's, else the environment's, else the default. Throws kUnknownOption when
  // the environment holds no number or one out of range. Thread-safe.
  [[nodiscard]] std::int64_t value() const;

 private:
  OptionSpec spec_;
  std::size_t index_ = 0;  // in the table of all
};

// Throws kUnknownOption for a name that does not exist (the text lists those that do) or a value
// out of range. Takes effect where the option is read next; some are read once (their meaning says
// so).
void set_option(std::string_view name, std::int64_t value);

struct OptionValue {
  OptionSpec spec;
  std::int64_t value = 0;
};
[[nodiscard]] std::vector<OptionValue> option_table();

}  // namespace limbo
