// The background threads: tasks, periodics and what happens when one of them throws.
#include "ipc/service_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/support/balance.h"
#include "tests/support/eventually.h"

namespace limbo {
namespace {

using testing::eventually;

class ServiceThreadTest : public testing::BalancedTest {};

TEST_F(ServiceThreadTest, APeriodicThatFailsIsCalledAgain) {
  std::atomic<int> calls{0};
  ServiceThread thread("test-thread");
  thread.post([&] {
    thread.add_periodic(
        [&](ServiceThread::Clock::time_point) -> std::optional<ServiceThread::Clock::time_point> {
          if (++calls < 3) throw std::runtime_error("no memory just now");
          return std::nullopt;
        });
  });
  EXPECT_TRUE(eventually([&] { return calls >= 3; }));
}

TEST_F(ServiceThreadTest, ATaskThatFailsStopsNoOther) {
  std::atomic<bool> done{false};
  ServiceThread thread("test-thread");
  thread.post([] { throw std::runtime_error("no memory just now"); });
  thread.post([&] { done = true; });
  EXPECT_TRUE(eventually([&] { return done.load(); }));
}

// What a task holds on to is let go when it has run, and not only after those behind it.
TEST_F(ServiceThreadTest, ATaskEndsBeforeTheNextBegins) {
  std::atomic<bool> go{false};
  std::atomic<bool> looked{false};
  std::atomic<long> seen{-1};
  ServiceThread thread("test-thread");
  thread.post([&] {
    while (!go) std::this_thread::yield();
  });
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  thread.post([held = std::move(held)] { static_cast<void>(held); });
  thread.post([&] {
    seen = watched.use_count();
    looked = true;
  });
  go = true;
  EXPECT_TRUE(eventually([&] { return looked.load(); }));
  EXPECT_EQ(seen, 0);
}

}  // namespace
}  // namespace limbo
