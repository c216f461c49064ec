#include "tests/support/nvrtc.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/cuda_test_kernels.h"

namespace limbo::testing {
namespace {

// The kernels of the GPU tests compile, also where there is no GPU to run them.
TEST(Nvrtc, CompilesTheTestKernels) {
  const std::string why = why_no_nvrtc();
  if (!why.empty()) GTEST_SKIP() << why;
  for (const char* architecture : {"sm_80", "sm_90"}) {
    EXPECT_EQ(compile_cubin(kCudaTestKernelSource, architecture).substr(1, 3), "ELF")
        << architecture;
  }
}

TEST(Nvrtc, ShowsTheCompilersWords) {
  const std::string why = why_no_nvrtc();
  if (!why.empty()) GTEST_SKIP() << why;
  try {
    (void)compile_cubin("this is no kernel", "sm_90");
    FAIL() << "it compiled";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("test_kernels.cu(1)"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace limbo::testing
