// The device suite on a GPU.
#include "tests/support/device_suite_memory.h"
#include "tests/support/device_suite_streams.h"
#include "tests/support/device_suite_words.h"

namespace limbo::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceSuite, ::testing::Values("cuda"), device_suite_name);

}  // namespace
}  // namespace limbo::testing
