// Which device a process gets: in processes of their own, since the choice is made once.
#include <gtest/gtest.h>

#include "allocator/device/device.h"
#include "allocator/error.h"
#include "tests/support/child_process.h"

namespace limbo::testing {
namespace {

LIMBO_CHILD_ROLE(tell_device) {
  try {
    child.send(process_device().name());
    if (&process_device() != &process_device()) child.send("made twice");
  } catch (const Error& error) {
    child.send(error_code_name(error.code()));
    child.send(error.what());
  }
  return 0;
}

ChildOptions with_device(std::optional<std::string> value) {
  return {{{"LIMBO_DEVICE", std::move(value)}}};
}

TEST(ProcessDevice, IsTheSimulatedOneWhereThatIsChosen) {
  ChildProcess child("tell_device", {}, with_device("simulated"));
  child.expect("simulated");
  child.finish();
}

TEST(ProcessDevice, ListsTheChoicesForAnUnknownOne) {
  ChildProcess child("tell_device", {}, with_device("gpu"));
  child.expect("unknown_option");
  const std::string text = child.receive();
  EXPECT_NE(text.find("\"gpu\""), std::string::npos) << text;
  EXPECT_NE(text.find("auto, cuda or simulated"), std::string::npos) << text;
}

TEST(ProcessDevice, SaysWhyThereIsNoCuda) {
  for (const auto& choice : {std::optional<std::string>("auto"), std::optional<std::string>()}) {
    ChildProcess child("tell_device", {}, with_device(choice));
    std::string why;
    if (cuda_available(&why)) {
      child.expect("cuda");
      continue;
    }
    child.expect("device_error");
    const std::string text = child.receive();
    EXPECT_NE(text.find(why), std::string::npos) << text;
    EXPECT_NE(text.find("LIMBO_DEVICE=simulated"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace limbo::testing
