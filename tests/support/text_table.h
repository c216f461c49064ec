// Rows of words in columns, for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace limbo::testing {

class TextTable {
 public:
  // Columns whose heading starts with '>' are aligned to the right.
  explicit TextTable(std::vector<std::string> headings);

  // Throws std::invalid_argument unless there is a cell for every column.
  void add_row(std::vector<std::string> cells);

  // Lines that begin with `indent` and have no blanks at their end.
  [[nodiscard]] std::string text(const std::string& indent) const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // the headings first
};

// "12.3", from bytes.
[[nodiscard]] std::string in_mib(std::uint64_t bytes);

}  // namespace limbo::testing
