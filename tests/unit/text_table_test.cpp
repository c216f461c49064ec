#include "tests/support/text_table.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace limbo::testing {
namespace {

TEST(TextTable, AlignsColumns) {
  TextTable table({"who", ">blocks", "state"});
  table.add_row({"reader A", "7", "connected"});
  table.add_row({"B", "1234567", ""});
  EXPECT_EQ(table.text("  "),
            "  who        blocks  state\n"
            "  reader A        7  connected\n"
            "  B         1234567\n");
  EXPECT_THROW(table.add_row({"too few"}), std::invalid_argument);
}

TEST(TextTable, SaysBytesInMib) {
  EXPECT_EQ(in_mib(0), "0.0");
  EXPECT_EQ(in_mib(3 * 524288), "1.5");
}

}  // namespace
}  // namespace limbo::testing
