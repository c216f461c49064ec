#include "tests/support/trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/support/sandbox.h"

namespace limbo::testing {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& text) {
    const std::filesystem::path path = sandbox_.path() / "some.trace";
    std::ofstream(path) << text;
    return path;
  }

  std::string error_of(const std::string& text) {
    try {
      (void)read_trace(file(text));
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  Sandbox sandbox_;
};

TEST_F(TraceTest, ReadsEventsInOrder) {
  const Trace trace = read_trace(file("a 10 1024 7\na 11 50 3\nf 10\na 10 6 7\n"));
  ASSERT_EQ(trace.events.size(), 4U);
  EXPECT_EQ(trace.block_count, 3U);
  EXPECT_EQ(trace.stream_count, 2U);
  EXPECT_EQ(trace.peak_bytes, 1074U);
  EXPECT_TRUE(trace.events[1].allocate);
  EXPECT_EQ(trace.events[1].size_bytes, 50U);
  EXPECT_EQ(trace.events[1].stream, 1U);
  EXPECT_FALSE(trace.events[2].allocate);
  EXPECT_EQ(trace.events[2].block, 0U);
  // An ID that is used again is another block.
  EXPECT_EQ(trace.events[3].block, 2U);
  EXPECT_EQ(trace.events[3].stream, 0U);
}

TEST_F(TraceTest, NamesTheLineThatIsWrong) {
  EXPECT_NE(error_of("a 1 5 0\nx 1\n").find("line 2"), std::string::npos);
  EXPECT_NE(error_of("a 1 5\n").find("lacks a size or a stream"), std::string::npos);
  EXPECT_NE(error_of("a 1 5 0\nf 1\nf 1\n").find("line 3: block 1"), std::string::npos);
  EXPECT_NE(error_of("a 1 5 0\na 1 5 0\n").find("line 2: block 1"), std::string::npos);
  EXPECT_THROW((void)read_trace("/nowhere/at.all"), std::runtime_error);
}

TEST_F(TraceTest, ReadsTheTraceOfTheDemo) {
  const Trace trace = read_trace(test_data("traces/multistream.trace"));
  EXPECT_EQ(trace.events.size(), 552U);
  EXPECT_EQ(trace.stream_count, 4U);
  EXPECT_EQ(trace.peak_bytes, 254150072U);
}

#ifdef LIMBO_HAVE_ZLIB
TEST_F(TraceTest, ReadsCompressedFiles) {
  const std::filesystem::path path = file("a 1 5 0\nf 1\n");
  ASSERT_EQ(std::system(("gzip -c " + path.string() + " > " + path.string() + ".gz").c_str()), 0);
  EXPECT_EQ(read_trace(path.string() + ".gz").events.size(), 2U);
}
#endif

}  // namespace
}  // namespace limbo::testing
