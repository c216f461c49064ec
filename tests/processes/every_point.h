// A scenario that passes every fail point, and the process that meets something at one of them.
//
// The parameter is the point. Its process (the reader for a consumer's transitions, the sender for a
// producer's) meets it in the middle of the scenario: it dies of it (kill_matrix_test.cpp), stops or
// is slow there (slow_points_test.cpp).
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/fail_points.h"
#include "tests/processes/sharing_support.h"

namespace limbo::testing {

class EveryPointTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  // What becomes of the process that passes the point.
  enum class Fate { kDies, kGoesOn };
  explicit EveryPointTest(Fate fate) : fate_(fate) {}

  void TearDown() override { expect_balance(sender_, reader_); }

  [[nodiscard]] static std::string_view point() { return fail_point_names()[GetParam()].name; }
  [[nodiscard]] static bool is_readers();
  [[nodiscard]] static bool is_of_exit() { return point().starts_with("exit."); }
  [[nodiscard]] static bool is_of_orphans() { return point().starts_with("orphan."); }
  // Passed without a context: the reader has none behind the scenario.
  [[nodiscard]] static bool is_of_lost_context();
  // Whether this device can lead there.
  [[nodiscard]] static bool can_be_passed();

  [[nodiscard]] Peer& passer() { return is_readers() ? reader_ : sender_; }
  [[nodiscard]] static bool dead(Peer& peer) { return !peer.process().running(); }

  // From now on the point has this action.
  void arm(const std::string& action);
  // Passes every fail point of both sides.
  void play();

  // Does one thing. Where somebody dies, errors are expected from then on, and a dead peer does
  // nothing more; where not, exactly this one is expected.
  template <typename Function>
  void attempt(Function&& function, std::string_view expected = "none") {
    std::string code = "none";
    std::string text;
    try {
      function();
    } catch (const PeerError& failure) {
      code = failure.code();
      text = failure.what();
    } catch (const ChildFailed& failure) {
      // A dying process closes its pipe a moment before it is dead.
      const bool died =
          fate_ == Fate::kDies && eventually([&] { return dead(sender_) || dead(reader_); });
      EXPECT_TRUE(died) << "a peer hangs: " << failure.what();
      return;
    }
    if (fate_ == Fate::kDies) return;
    EXPECT_EQ(code, expected) << text;
  }

  // A sender and a reader that work: a block goes through and comes back, nothing stays behind.
  static void expect_works(Peer& sender, Peer& reader);

  // All that the scenario has allocated and lent, or opened, and does not give back itself.
  void give_back_lent();
  void give_back_opened();

  Sandbox sandbox_;
  Peer sender_;
  Peer reader_;
  std::chrono::steady_clock::duration exit_took_{0};  // where the point is passed at the exit

 private:
  std::string send(const std::string& name, std::int64_t time_limit_ms = -1);
  void open(Peer& reader, const std::string& name, const std::string& message,
            std::string_view expected = "none");
  // Waits until the sender has a number, or somebody is dead.
  void await(const std::string& name, std::int64_t value, bool empty_cache = false);
  void await_no_releases();

  void play_failed_receive();
  void play_streams();
  void play_names();
  void play_returned_piece();
  void play_third();
  void send_on();
  void play_rare_releases();
  void play_lost_context();
  void play_end();

  const Fate fate_;
  std::vector<std::string> messages_;
};

// For INSTANTIATE_TEST_SUITE_P over all points: "claim.after_held" is "claim_after_held".
[[nodiscard]] std::string name_of_point(const ::testing::TestParamInfo<std::size_t>& info);

}  // namespace limbo::testing
