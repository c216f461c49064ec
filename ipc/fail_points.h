// Fail points: named places, one at every transition of the protocol, where a test can make a
// process die, stop, be slow or fail.
//
//   LIMBO_FAIL_POINTS="claim.after_held=crash,share.after_open=delay:20,release.before_enqueue=stop@3"
//
// | action   | what happens when the point is passed                                        |
// |----------|------------------------------------------------------------------------------|
// | crash    | the process kills itself with SIGKILL                                        |
// | stop     | the process stops itself with SIGSTOP and goes on at SIGCONT                 |
// | delay:ms | the thread sleeps                                                            |
// | error    | throws Error(kInternal); only at points whose callers undo what was begun    |
//
// `@n` acts at the n-th passing only (crash, stop and error: the first by default; delay: every one
// by default). Compiled in always; costs one relaxed load while no point is set.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string_view>

namespace limbo {

struct FailPointName {
  std::string_view name;
  bool can_fail = false;  // "error" is allowed
};

// Every fail point there is. A name that is used and not listed does not compile.
inline constexpr FailPointName kFailPoints[] = {
    // a consumer's claim and release (protocol/claim.h)
    {"claim.after_held"},
    {"claim.after_dirty"},
    {"claim.after_verdict"},
    {"claim.before_undo"},
    {"dirty.between_group_and_lease"},
    {"release.after_released"},
    {"release.after_dirty"},
    // a consumer's receive and stream-ordered release
    {"receive.before_claim", true},
    {"receive.after_claim", true},
    {"receive.after_register", true},
    {"receive.after_mark_mapped", true},
    {"receive.after_open", true},
    {"receive.after_wait", true},
    {"release.before_enqueue", true},
    {"release.after_enqueue"},
    {"release.before_late", true},
    {"release.before_keep"},
    {"release.after_park"},
    {"release.when_idle"},
    {"release.before_retire"},
    {"release.before_lost"},
    {"release.after_lost"},
    {"unmap.before_close"},
    {"unmap.after_close"},
    {"unmap.after_clear"},
    // a consumer's connection
    {"connect.before_hello"},
    {"connect.after_hello"},
    {"connect.after_welcome", true},
    {"connect.after_map", true},
    {"connect.before_ask"},
    {"decline.before_send"},
    // a consumer that sends on, and one that opens what was sent on
    {"sendon.after_enqueue", true},
    {"sendon.before_ask", true},
    {"sendon.after_answer", true},
    {"sendon.after_heard", true},
    {"sendon.before_take_back"},
    {"forwarder.before_ask", true},
    {"forwarder.after_map", true},
    {"forwarder.before_complete"},
    {"forwarder.after_complete"},
    {"bye.before_send"},
    {"watch.before_add", true},
    {"orphan.before_complete"},
    {"orphan.after_mark"},
    {"orphan.after_complete"},
    // the producer's end of a connection
    {"accept.before_lease"},
    {"accept.after_lease"},
    {"accept.after_welcome"},
    {"peer.after_gone"},
    {"peer.after_quiet"},
    {"reap.before_look"},
    {"declined.after_count"},
    // the producer's share and drain
    {"share.after_pin", true},
    {"share.after_reserve", true},
    {"share.after_enqueue", true},
    {"share.after_open"},
    {"drain.after_draining"},
    {"own.after_pin"},
    {"exit.before_drain"},
    {"exit.after_drain"},
    // the producer's part of a forward
    {"forward.after_note"},
    {"forward.after_pin", true},
    {"forward.after_open"},
    {"forward.before_answer"},
    {"forward.after_heard"},
    {"timeline.before_answer"},
    // the producer's collect
    {"close.before_closing"},
    {"close.after_closing"},
    {"close.before_verdict"},
    {"close.after_verdict"},
    {"note.before_free"},
    {"collect.after_note"},
    {"collect.before_unlock"},
    {"collect.before_unpin"},
    {"collect.after_unpin"},
    // names of the producer
    {"names.after_lock", true},
    {"names.after_look", true},
    {"names.before_rename", true},
    {"names.before_unlink", true},
    {"acquire.after_share", true},
    // leases and pieces of the producer
    {"lease.before_listed", true},
    {"lease.after_listed"},
    {"lease.before_sweep"},
    {"lease.after_sweep"},
    {"lease.before_left"},
    {"lease.after_left"},
    {"piece.after_flag"},
    {"piece.after_returned"},
};
inline constexpr std::size_t kFailPointCount = sizeof(kFailPoints) / sizeof(kFailPoints[0]);

[[nodiscard]] constexpr std::span<const FailPointName> fail_point_names() noexcept {
  return kFailPoints;
}

// kFailPointCount when there is no such point.
constexpr std::size_t fail_point_index(std::string_view name) noexcept {
  std::size_t index = 0;
  while (index < kFailPointCount && kFailPoints[index].name != name) ++index;
  return index;
}

// Replaces all settings; empty: none is set. Throws kBadArgument for a name or action that does not
// exist. Not for use while another thread passes a point that is set.
// The environment is read when the library is loaded; a text that cannot be read ends the process
// with a message, since a test that believes in its fail point must not pass without it.
void set_fail_points(std::string_view spec);

// How often the point was passed since it was set.
[[nodiscard]] std::size_t fail_point_passed(std::string_view name);

namespace fail_points_detail {
extern std::atomic<bool> any_set;
void pass(std::size_t index);
}  // namespace fail_points_detail

#define LIMBO_FAIL_POINT(name)                                                  \
  do {                                                                          \
    constexpr std::size_t limbo_fail_point = ::limbo::fail_point_index(name);   \
    static_assert(limbo_fail_point < ::limbo::kFailPointCount,                  \
                  "not listed: add it to "                                      \
                  "kFailPoints");                                               \
    if (::limbo::fail_points_detail::any_set.load(std::memory_order_relaxed)) { \
      ::limbo::fail_points_detail::pass(limbo_fail_point);                      \
    }                                                                           \
  } while (false)

}  // namespace limbo
