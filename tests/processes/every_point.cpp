#include "tests/processes/every_point.h"

namespace limbo::testing {
namespace {

// What must fail so that the point is passed at all.
std::string_view way_to(std::string_view point) {
  if (point == "decline.before_send") return "receive.before_claim=error";
  if (point == "bye.before_send") return "connect.after_welcome=error";
  return {};
}

// What play_rare_releases and play_lost_context pass, and the rest does not.
bool is_of_rare_releases(std::string_view name) {
  for (const std::string_view other :
       {"release.before_late", "release.before_keep", "release.after_park", "release.when_idle",
        "release.before_retire", "release.before_lost", "release.after_lost"}) {
    if (name == other) return true;
  }
  return false;
}

}  // namespace

bool EveryPointTest::is_readers() {
  for (const std::string_view prefix :
       {"claim.", "dirty.", "release.", "receive.", "unmap.", "connect.", "decline.", "bye.",
        "orphan.", "sendon.", "forwarder."}) {
    if (point().starts_with(prefix)) return true;
  }
  return false;
}

bool EveryPointTest::is_of_lost_context() {
  return point() == "release.before_retire" || point() == "release.before_lost" ||
         point() == "release.after_lost";
}

// NVIDIA's driver crashes on destroyed streams, and lands all.
bool EveryPointTest::can_be_passed() {
  return on_simulated_device() ||
         (point() != "release.when_idle" && point() != "release.before_retire");
}

std::string name_of_point(const ::testing::TestParamInfo<std::size_t>& info) {
  std::string name(fail_point_names()[info.param].name);
  for (char& c : name) {
    if (c == '.') c = '_';
  }
  return name;
}

void EveryPointTest::arm(const std::string& action) {
  std::string spec = std::string(point()) + "=" + action;
  if (!way_to(point()).empty()) spec += "," + std::string(way_to(point()));
  passer().set_fail_points(spec);
}

std::string EveryPointTest::send(const std::string& name, std::int64_t time_limit_ms) {
  std::string message;
  attempt([&] { message = sender_.share(name, time_limit_ms); });
  if (!message.empty()) messages_.push_back(message);
  return message;
}

void EveryPointTest::open(Peer& reader, const std::string& name, const std::string& message,
                          std::string_view expected) {
  if (!message.empty()) attempt([&] { reader.receive(name, message); }, expected);
}

void EveryPointTest::await(const std::string& name, std::int64_t value, bool empty_cache) {
  const bool reached = eventually([&] {
    bool done = false;
    attempt([&] {
      if (empty_cache) sender_.empty_cache();
      done = sender_.stat(name) == value;
    });
    return done || dead(sender_) || dead(reader_);
  });
  EXPECT_TRUE(reached) << name << " does not become " << value;
}

void EveryPointTest::await_no_releases() {
  const bool over = eventually([&] {
    bool done = false;
    attempt([&] { done = reader_.stat("releases_pending") == 0; });
    return done || dead(reader_);
  });
  EXPECT_TRUE(over) << "a release does not end";
}

// ---- the scenario -------------------------------------------------------------------------------

void EveryPointTest::play() {
  play_failed_receive();
  play_streams();
  play_returned_piece();
  play_third();
  send_on();
  if (is_of_rare_releases(point())) play_rare_releases();
  play_end();
}

// Two points are passed where a receive fails.
void EveryPointTest::play_failed_receive() {
  if (way_to(point()).empty()) return;
  attempt([&] { sender_.allocate("a", kMiB, 1); });
  open(reader_, "x", send("a"), "internal");
  attempt([&] { sender_.free("a"); });
}

// To and fro, on two streams, with a read in the sender itself.
void EveryPointTest::play_streams() {
  attempt([&] { sender_.allocate("a", kMiB, 1); });
  open(reader_, "x", send("a"));
  attempt([&] { reader_.record_stream("x", "side"); });
  attempt([&] { reader_.fill("x", 2); });
  attempt([&] { reader_.release("x"); });
  open(sender_, "self", send("a"));
  attempt([&] { sender_.release("self"); });
  open(reader_, "y", send("a"));
  play_names();
  attempt([&] { sender_.free("a"); });
  attempt([&] { reader_.drop("y"); });
  await("limbo", 0);
}

void EveryPointTest::play_names() {
  attempt([&] { sender_.publish("weights", "a"); });
  std::string message;
  attempt([&] { message = reader_.acquire("weights"); });
  open(reader_, "named", message);
  attempt([&] { (void)sender_.unpublish("weights"); });
  attempt([&] { reader_.drop("named"); });
}

// A piece that goes back to the driver.
void EveryPointTest::play_returned_piece() {
  attempt([&] { sender_.allocate("b", 32 * kMiB, 1); });
  open(reader_, "z", send("b"));
  attempt([&] { reader_.drop("z"); });
  attempt([&] { sender_.free("b"); });
  await("limbo", 0);
  await("reserved", 0, true);
}

// A refused claim; and a third process gives its first connection up, declines, and dies holding a
// block.
void EveryPointTest::play_third() {
  attempt([&] { sender_.allocate("c", kMiB, 1); });
  const std::string taken_back = send("c");
  if (!taken_back.empty()) attempt([&] { sender_.withdraw(taken_back); });
  open(reader_, "w", taken_back, "withdrawn");

  Peer third;
  attempt([&] { third.set_fail_points("connect.after_welcome=error"); });
  open(third, "v", send("c"), "internal");
  attempt([&] { third.set_fail_points("receive.before_claim=error"); });
  open(third, "v", send("c"), "internal");
  attempt([&] { third.set_fail_points(""); });
  open(third, "v", send("c"));
  third.process().kill();
  await("leases_swept", 1);
  attempt([&] { (void)sender_.reap(false); });
  attempt([&] { (void)sender_.drain(std::chrono::milliseconds(100)); });
}

// The reader sends on to another process, and takes one such message back; the other one sends on to
// the reader, and dies. (Nobody can take back what a dead process has sent on: it expires.)
void EveryPointTest::send_on() {
  constexpr std::int64_t kTimeLimitMs = 500;
  attempt([&] { sender_.allocate("d", kMiB, 1); });
  open(reader_, "held", send("d"));
  std::string message;
  const auto send_on = [&](Peer& from, const std::string& name) {
    message.clear();
    attempt([&] { message = from.share(name, kTimeLimitMs); });
  };
  send_on(reader_, "held");
  if (!message.empty()) attempt([&] { reader_.withdraw(message); });
  send_on(reader_, "held");
  Peer other;
  open(other, "sent_on", message);
  send_on(other, "sent_on");
  open(reader_, "back", message);
  other.process().kill();
  await("leases_swept", 2);
  attempt([&] {
    (void)eventually([&] { return dead(reader_) || reader_.stat("forwarders_met") == 0; });
  });
  attempt([&] { reader_.drop("held"); });
  attempt([&] { reader_.drop("back"); });
  attempt([&] { sender_.free("d"); });
  await("limbo", 0);
}

// Releases into a capture, more than a stream takes, and on a stream that is gone.
void EveryPointTest::play_rare_releases() {
  attempt([&] { sender_.allocate("d", kMiB, 1); });
  attempt([&] { reader_.use_stream("s"); });
  open(reader_, "captured", send("d"));
  attempt([&] { reader_.begin_capture(); });
  attempt([&] { reader_.drop("captured"); });
  attempt([&] { reader_.end_capture("g"); });
  attempt([&] { reader_.destroy_graph("g"); });

  std::string many;
  for (int count = 0; count < 300; ++count) many += " " + send("d");
  attempt([&] { reader_.call("receive_many l" + many); });
  attempt([&] { reader_.write_for("l0", 2, std::chrono::milliseconds(300)); });
  attempt([&] { reader_.call("repeat 300 drop l%"); });
  await_no_releases();

  if (on_simulated_device()) {
    open(reader_, "gone", send("d"));
    attempt([&] { reader_.use_stream("default"); });
    attempt([&] { reader_.destroy_stream("s"); });
    attempt([&] { reader_.drop("gone"); });
    await_no_releases();
  }
  if (is_of_lost_context()) play_lost_context();
  attempt([&] { sender_.free("d"); });
}

void EveryPointTest::play_lost_context() {
  attempt([&] { reader_.use_stream("t"); });
  open(reader_, "behind", send("d"));
  open(reader_, "held", send("d"));
  attempt([&] { reader_.write_for("behind", 2, std::chrono::milliseconds(200)); });
  attempt([&] { reader_.drop("behind"); });
  attempt([&] { (void)reader_.lose_context(); });
  attempt([&] { reader_.drop("held"); });
  await_no_releases();
}

// The sender ends, or dies, while the reader holds a block.
void EveryPointTest::play_end() {
  if (!is_of_exit() && !is_of_orphans()) return;
  open(reader_, "last", send("c"));
  if (is_of_exit()) {
    const auto before = std::chrono::steady_clock::now();
    attempt([&] { sender_.leave(0); });
    EXPECT_TRUE(eventually([&] { return dead(sender_); })) << "it does not end";
    exit_took_ = std::chrono::steady_clock::now() - before;
  } else {
    sender_.process().kill();
  }
  EXPECT_TRUE(eventually([&] {
    bool seen = false;
    attempt([&] { seen = reader_.orphaned("last"); });
    return seen || dead(reader_);
  })) << "what its dead owner has lent is not marked";
  if (is_of_orphans() && fate_ == Fate::kDies) {
    EXPECT_TRUE(eventually([&] { return dead(reader_); })) << point() << " was not passed";
  }
}

// ---- the end ------------------------------------------------------------------------------------

void EveryPointTest::give_back_lent() {
  const auto try_to = [](auto&& function) { (void)error_of(function); };
  for (const std::string& message : messages_) try_to([&] { sender_.withdraw(message); });
  for (const char* name : {"a", "b", "c", "d"}) try_to([&] { sender_.free(name); });
}

void EveryPointTest::give_back_opened() {
  for (const char* name : {"x", "y", "z", "w", "named", "held", "back", "last"}) {
    (void)error_of([&] { reader_.drop(name); });
  }
}

void EveryPointTest::expect_works(Peer& sender, Peer& reader) {
  sender.allocate("fresh", kMiB, 77);
  const std::string message = sender.share("fresh");
  reader.receive("fresh", message);
  EXPECT_TRUE(reader.holds("fresh", 77));
  sender.free("fresh");
  reader.drop("fresh");
  EXPECT_TRUE(sender.becomes("limbo", 0));
  EXPECT_TRUE(sender.becomes("exports_open", 0));
  EXPECT_TRUE(reader.becomes("releases_pending", 0));
  EXPECT_TRUE(eventually([&] {
    sender.empty_cache();
    return sender.stat("reserved") == 0;
  }));
  sender.check_invariants();
  const auto numbers = sender.stats();
  for (const char* name : {"allocated", "active", "in_flight", "held_claims"}) {
    EXPECT_EQ(numbers.at(name), 0) << name;
  }
}

}  // namespace limbo::testing
