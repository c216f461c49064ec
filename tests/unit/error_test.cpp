#include "allocator/error.h"

#include <gtest/gtest.h>

namespace limbo {
namespace {

TEST(Error, JoinsWhatHappenedAndWhatToDo) {
  const Error error(ErrorCode::kBadArgument, "consumers is 0.", "Use 1 or more.");
  EXPECT_STREQ(error.what(), "consumers is 0. Use 1 or more.");
  EXPECT_EQ(error.code(), ErrorCode::kBadArgument);
}

TEST(Error, CodesHaveStableNames) {
  EXPECT_EQ(error_code_name(ErrorCode::kBadDescriptor), "bad_descriptor");
  EXPECT_EQ(error_code_name(ErrorCode::kProducerExited), "producer_exited");
}

}  // namespace
}  // namespace limbo
