#include "tests/support/text_table.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace limbo::testing {

TextTable::TextTable(std::vector<std::string> headings) {
  for (std::string& heading : headings) {
    const bool right = heading.starts_with('>');
    right_.push_back(right);
    if (right) heading.erase(0, 1);
  }
  rows_.push_back(std::move(headings));
}

void TextTable::add_row(std::vector<std::string> cells) {
  if (cells.size() != right_.size()) {
    throw std::invalid_argument("a row of " + std::to_string(cells.size()) +
                                " cells in a table of " + std::to_string(right_.size()));
  }
  rows_.push_back(std::move(cells));
}

std::string TextTable::text(const std::string& indent) const {
  std::vector<std::size_t> widths(right_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string result;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += right_[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  }
  return result;
}

std::string in_mib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", static_cast<double>(bytes) / (1 << 20));
  return text;
}

}  // namespace limbo::testing
