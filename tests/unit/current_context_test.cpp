// Which GPU's context is current, and how often the driver is asked: against a stand-in for libcuda
// that counts.
#ifdef LIMBO_FAKE_DRIVER_DIR

#include "allocator/device/current_context.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/cuda_driver.h"

namespace limbo::testing {
namespace {

// "1, asked 1": the answer, and how often cuCtxGetDevice was asked for it. cuCtxGetCurrent, which
// costs less, is asked each time.
std::string asked_device() {
  const auto questions = driver_function<int (*)()>("fakeCudaDeviceQuestions");
  const int before = questions();
  const int device = current_context_device();
  return std::to_string(device) + ", asked " + std::to_string(questions() - before);
}

LIMBO_CHILD_ROLE(ask_for_the_device) {
  child.send(asked_device());
  {
    const CurrentContext first(0);
    child.send(asked_device());
    child.send(asked_device());
    {
      const CurrentContext second(1);
      child.send(asked_device());
      child.send(asked_device());
    }
    child.send(asked_device());
    std::thread([&] {
      child.send(asked_device());
      const CurrentContext second(1);
      child.send(asked_device());
    }).join();
  }
  child.send(asked_device());
  return 0;
}

LIMBO_CHILD_ROLE(ask_with_a_context_of_its_own) {
  const auto other_is_of = driver_function<int (*)(int)>("fakeCudaOtherContextIsOf");
  const auto retains = driver_function<int (*)()>("fakeCudaRetains");
  (void)other_is_of(1);
  child.send(asked_device());
  child.send("retained " + std::to_string(retains()));
  (void)other_is_of(0);  // destroyed, and its handle given to another
  child.send(asked_device());
  {
    const CurrentContext primary(0);
    child.send(asked_device());
    child.send(asked_device());
  }
  child.send(asked_device());
  (void)other_is_of(1);
  child.send(asked_device());
  return 0;
}

LIMBO_CHILD_ROLE(look_for_contexts) {
  const auto say = [&] { child.send(every_device_has_context() ? "all" : "not all"); };
  say();
  std::optional<CurrentContext> first(0);
  say();
  const CurrentContext second(1);
  first.reset();
  say();
  return 0;
}

ChildOptions with_two_devices() {
  return {{{"LD_LIBRARY_PATH", LIMBO_FAKE_DRIVER_DIR}, {"FAKE_CUDA_DEVICES", "2"}}};
}

TEST(CurrentContext, IsAskedForOnceAndRememberedByItsHandle) {
  ChildProcess child("ask_for_the_device", {}, with_two_devices());
  child.expect("-1, asked 0");
  child.expect("0, asked 1");
  child.expect("0, asked 0");
  child.expect("1, asked 1");
  child.expect("1, asked 0");
  child.expect("0, asked 0");
  child.expect("-1, asked 0");  // another thread
  child.expect("1, asked 0");
  child.expect("-1, asked 0");
  child.finish();
}

// Such a context can be destroyed, and its handle be given to a context of another GPU.
TEST(CurrentContext, ThatIsNoPrimaryOneIsAskedForEachTime) {
  ChildProcess child("ask_with_a_context_of_its_own", {}, with_two_devices());
  child.expect("1, asked 1");
  child.expect("retained 0");  // asking makes no primary context
  child.expect("0, asked 1");
  child.expect("0, asked 1");
  child.expect("0, asked 0");
  child.expect("0, asked 1");
  child.expect("1, asked 1");
  child.finish();
}

TEST(CurrentContext, EveryDeviceHasOneOnceTheLastHas) {
  ChildProcess child("look_for_contexts", {}, with_two_devices());
  child.expect("not all");
  child.expect("not all");
  child.expect("all");
  child.finish();
}

}  // namespace
}  // namespace limbo::testing

#endif
