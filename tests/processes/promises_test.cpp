// One message for several processes: opened by none, some and all of them, in one process and in
// several, with its owner holding on and letting go.
#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

using std::chrono::milliseconds;

class PromisesTest : public SharingTest {
 protected:
  void TearDown() override {
    third_.expect_balance();
    SharingTest::TearDown();
  }

  Peer third_;
};

TEST_F(PromisesTest, EveryoneWhoWasPromisedItGetsItAfterItsOwnerHasLetGo) {
  sender_.allocate("b", kMiB, 7);
  const std::string message = sender_.share("b", -1, 2);
  EXPECT_EQ(sender_.stat("in_flight"), 2);
  sender_.free("b");
  for (Peer* reader : {&reader_, &third_}) {
    reader->receive("r", message);
    EXPECT_TRUE(reader->holds("r", 7));
    reader->release("r");
    EXPECT_TRUE(sender_.becomes("in_flight", reader == &reader_ ? 1 : 0));
  }
  expect_all_back();
  EXPECT_EQ(error_of([&] { reader_.receive("late", message); }), "gone");
}

// Three opens of one process are one of two promises.
TEST_F(PromisesTest, OneProcessUsesUpOnePromiseHoweverOftenItOpens) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", -1, 2);
  sender_.free("b");
  for (const char* name : {"one", "two", "three"}) reader_.receive(name, message);
  for (const char* name : {"one", "two", "three"}) reader_.drop(name);
  EXPECT_TRUE(sender_.becomes("in_flight", 1));
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  EXPECT_GT(sender_.stat("limbo"), 0);
  third_.receive("r", message);
  EXPECT_TRUE(third_.holds("r", 4));
  third_.drop("r");
  expect_all_back();
}

TEST_F(PromisesTest, TheOwnerCountsAsOneOfThem) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", -1, 2);
  sender_.receive("own", message);
  sender_.receive("again", message);
  EXPECT_TRUE(sender_.becomes("in_flight", 1));
  sender_.free("b");
  sender_.drop("own");
  sender_.drop("again");
  EXPECT_GT(sender_.stat("limbo"), 0);
  reader_.receive("r", message);
  EXPECT_TRUE(reader_.holds("r", 4));
  reader_.drop("r");
  expect_all_back();
}

TEST_F(PromisesTest, WhoDoesNotComeLosesItAtTheTimeLimit) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", 200, 3);
  reader_.receive("r", message);
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("expired", 1));
  EXPECT_EQ(sender_.stat("in_flight"), 0);
  EXPECT_EQ(error_of([&] { third_.receive("late", message); }), "expired");
  EXPECT_TRUE(reader_.holds("r", 4));
  EXPECT_GT(sender_.stat("limbo"), 0);
  reader_.drop("r");
  expect_all_back();
}

TEST_F(PromisesTest, OpenedByNobodyItExpires) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", 100, 3);
  sender_.free("b");
  EXPECT_TRUE(sender_.becomes("expired", 1));
  expect_all_back();
  EXPECT_EQ(error_of([&] { reader_.receive("late", message); }), "expired");
}

// While its owner holds on there is no time limit, and more may come than were promised.
TEST_F(PromisesTest, MoreThanWerePromisedMayOpenItWhileItsOwnerHoldsOn) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", 0, 2);
  Peer fourth;
  for (Peer* reader : {&reader_, &third_, &fourth}) {
    reader->receive("r", message);
    EXPECT_TRUE(reader->holds("r", 4));
  }
  EXPECT_TRUE(sender_.becomes("held_claims", 3));
  EXPECT_EQ(sender_.stat("in_flight"), 0);
  sender_.free("b");
  for (Peer* reader : {&reader_, &third_, &fourth}) {
    EXPECT_GT(sender_.stat("limbo"), 0);
    reader->drop("r");
  }
  expect_all_back();
}

// A process that was promised it and dies holding it has had its one; one that dies before has not.
TEST_F(PromisesTest, ADeadHolderCountsOnce) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", -1, 2);
  sender_.free("b");
  {
    Peer dies;
    dies.receive("r", message);
    dies.process().kill();
  }
  EXPECT_TRUE(sender_.becomes("leases_swept", 1));
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  EXPECT_GT(sender_.stat("limbo"), 0);
  reader_.receive("r", message);
  EXPECT_TRUE(reader_.holds("r", 4));
  reader_.drop("r");
  expect_all_back();
}

TEST_F(PromisesTest, TakenBackWithOneOfThreeThere) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", -1, 3);
  reader_.receive("r", message);
  sender_.withdraw(message);
  EXPECT_EQ(sender_.stat("in_flight"), 0);
  EXPECT_EQ(error_of([&] { third_.receive("late", message); }), "withdrawn");
  EXPECT_TRUE(reader_.holds("r", 4));
  sender_.free("b");
  reader_.drop("r");
  expect_all_back();
}

// Of a process whose row is full, the promise is taken back, once.
TEST_F(PromisesTest, WhoCannotClaimIsNotWaitedFor) {
  reader_.set_fail_points("receive.before_claim=error@1");
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", -1, 2);
  EXPECT_EQ(error_of([&] { reader_.receive("r", message); }), "internal");
  EXPECT_TRUE(sender_.becomes("in_flight", 1));
  reader_.receive("r", message);
  EXPECT_TRUE(sender_.becomes("held_claims", 1));
  reader_.drop("r");
  EXPECT_TRUE(sender_.becomes("held_claims", 0));
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  sender_.withdraw(message);
  sender_.free("b");
  expect_all_back();
}

// Whatever it is that keeps it from being opened.
TEST_F(PromisesTest, WhatIsRefusedForItsContentsIsNotWaitedFor) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b", -1, 3);
  sender_.free("b");
  for (int time = 0; time < 2; ++time) {  // one process is one promise
    EXPECT_EQ(error_of([&] { reader_.refuse(message); }), "bad_descriptor");
    EXPECT_TRUE(sender_.becomes("in_flight", 2));
  }
  EXPECT_EQ(error_of([&] { sender_.refuse(message); }), "bad_descriptor");
  EXPECT_EQ(sender_.stat("in_flight"), 1);
  EXPECT_EQ(error_of([&] { third_.refuse(message); }), "bad_descriptor");
  expect_all_back();
}

TEST_F(PromisesTest, WhatItsSenderCannotOpenItselfIsNotWaitedFor) {
  sender_.allocate("b", kMiB, 4);
  const std::string message = sender_.share("b");
  sender_.free("b");
  sender_.set_fail_points("receive.before_claim=error@1");
  EXPECT_EQ(error_of([&] { sender_.receive("own", message); }), "internal");
  expect_all_back();
}

TEST_F(PromisesTest, TheSendersExitWaitsForAllOfThem) {
  Peer sender;
  sender.allocate("b", kMiB, 4);
  const std::string message = sender.share("b", -1, 2);
  reader_.receive("r", message);
  EXPECT_FALSE(sender.drain(milliseconds(50)));
  sender.leave(0);
  third_.receive("r", message);
  EXPECT_EQ(sender.process().wait().code, 0);
  for (Peer* reader : {&reader_, &third_}) {
    EXPECT_TRUE(reader->holds("r", 4));
    reader->drop("r");
  }
}

}  // namespace
}  // namespace limbo::testing
