// Every kept input of every target, without libFuzzer: what once was found stays found.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/receive_target.h"
#include "tests/fuzz/target.h"

namespace limbo::fuzz {
namespace {

namespace fs = std::filesystem;

void replay(const std::string& name) {
  const Target target = targets().at(name);
  std::vector<fs::path> inputs;
  for (const auto& entry : fs::directory_iterator(fs::path(LIMBO_FUZZ_SEEDS_DIR) / name)) {
    inputs.push_back(entry.path());
  }
  std::sort(inputs.begin(), inputs.end());
  ASSERT_FALSE(inputs.empty());
  for (const fs::path& input : inputs) {
    std::ifstream file(input, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    try {
      target(std::as_bytes(std::span(bytes)));
    } catch (const std::exception& broken) {
      ADD_FAILURE() << input << ": " << broken.what();
    }
  }
}

TEST(Seeds, Decoders) {
  replay("decoders");
}
TEST(Seeds, Receive) {
  replay("receive");
  EXPECT_NO_THROW(check_receive_balance());
}
TEST(Seeds, Channel) {
  replay("channel");
}
TEST(Seeds, Handshake) {
  replay("handshake");
}
TEST(Seeds, ClaimRows) {
  replay("claim_rows");
}
TEST(Seeds, Allocator) {
  replay("allocator");
}

TEST(Seeds, EveryTargetHasATest) {
  EXPECT_EQ(targets().size(), 6U);
}

}  // namespace
}  // namespace limbo::fuzz
