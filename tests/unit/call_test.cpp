// A question to a process that refuses it before it is asked.
#include "ipc/call.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "allocator/error.h"
#include "ipc/ask.h"
#include "ipc/channel.h"
#include "ipc/channel_socket.h"
#include "ipc/fail_point_hooks.h"
#include "ipc/incarnation.h"
#include "tests/support/balance.h"
#include "tests/support/sandbox.h"

namespace limbo::testing {
namespace {

class CallTest : public BalancedTest {
 protected:
  // Accepts, says that, and closes, between the connecting and the asking.
  void refuse_the_next(const MessageBytes& words) {
    at_fail_point("connect.before_ask", [this, words] {
      const OwnedFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ASSERT_TRUE(socket.valid());
      if (words.empty()) return;
      ASSERT_TRUE(send_packet(socket.get(), words));
    });
  }
  Error error_of_asking() {
    try {
      (void)ask_who_holds(process_);
    } catch (const Error& failure) {
      return failure;
    }
    return Error(ErrorCode::kInternal, "answered");
  }

  Sandbox sandbox_;
  RuntimeDirectory directory_ = RuntimeDirectory::open_own();
  LendingProcess process_{random_incarnation(), directory_.path(), 0};
  OwnedFd listener_ = listen_in(directory_, channel_socket_name(process_.incarnation));
};

TEST_F(CallTest, WhatItRefusesWithIsToldThoughItHasClosedByThen) {
  refuse_the_next(encode(Refused{ErrorCode::kNoChannel, "Too many have come."}));
  const Error failure = error_of_asking();
  EXPECT_EQ(failure.code(), ErrorCode::kNoChannel);
  EXPECT_STREQ(failure.what(), "Too many have come.");
}

TEST_F(CallTest, WhoClosesWithoutAWordIsSaidToHaveClosed) {
  refuse_the_next({});
  const Error failure = error_of_asking();
  EXPECT_EQ(failure.code(), ErrorCode::kNoChannel);
  EXPECT_NE(std::string(failure.what()).find("it closed the connection"), std::string::npos)
      << failure.what();
}

}  // namespace
}  // namespace limbo::testing
