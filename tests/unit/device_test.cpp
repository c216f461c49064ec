#include "allocator/device/device.h"

#include <gtest/gtest.h>

#include "allocator/error.h"

namespace limbo {
namespace {

TEST(Uuid, IsSpeltAsNvidiaSmiDoes) {
  Uuid uuid;
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) {
    uuid.bytes[i] = static_cast<std::uint8_t>(i * 17);
  }
  EXPECT_EQ(to_string(uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
}

TEST(CudaAvailable, SaysWhatIsMissing) {
  std::string why = "untouched";
  if (cuda_available(&why)) {
    EXPECT_EQ(why, "");
    EXPECT_TRUE(cuda_available());
    EXPECT_EQ(make_cuda_device()->name(), "cuda");
    return;
  }
  EXPECT_NE(why, "");
  EXPECT_NE(why, "untouched");
}

TEST(CudaAvailable, IsFalseWhereEveryGpuIsHidden) {
  const char* before = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string saved = before != nullptr ? before : "";
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  std::string why;
  EXPECT_FALSE(cuda_available(&why));
  EXPECT_NE(why, "");
  if (before != nullptr) {
    setenv("CUDA_VISIBLE_DEVICES", saved.c_str(), 1);
  } else {
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
}

}  // namespace
}  // namespace limbo
