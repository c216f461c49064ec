#include "tests/tools/killmatrix/peer.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "allocator/device/sim_device.h"
#include "allocator/options.h"
#include "ipc/fail_point_hooks.h"
#include "ipc/fail_points.h"
#include "ipc/sharing_service.h"
#include "tests/support/eventually.h"
#include "tests/support/peer_balance.h"
#include "tests/tools/killmatrix/actor.h"
#include "tests/tools/killmatrix/helper.h"
#include "tests/tools/killmatrix/names.h"

namespace limbo::killmatrix {
namespace {

constexpr unsigned kForkChildSeconds = 60;
constexpr std::size_t kLittleMemory = std::size_t{6} << 20;
constexpr int kActionsBetweenCounts = 16;

class Process {
 public:
  explicit Process(const Birth& birth)
      : birth_(birth),
        plan_(birth.plan),
        diary_(*birth.arena, plan_.slot, plan_.incarnation),
        page_(birth.arena->slots[plan_.slot]),
        random_(plan_.seed) {}

  [[noreturn]] void run() {
    diary_.line("born: %.100s", describe(plan_).c_str());
    set_fail_points(plan_.fail_points);
    if (plan_.end == End::kFailPoint) die_at_fail_point(plan_.at_passing);
    set_options();
    busy(true);
    start();
    busy(false);
    say("r");
    await_turn();
    while (true) {
      listen();
      act();
    }
  }

 private:
  [[nodiscard]] bool lends() const noexcept { return plan_.role == Role::kProducer; }

  // As the action "crash" does, but not unannounced.
  void die_at_fail_point(std::uint32_t passing) {
    at_fail_point(kFailPoints[plan_.point].name, [this, passing] {
      if (passing > 1) return die_at_fail_point(passing - 1);
      diary_.ends();
      (void)::raise(SIGKILL);
    });
  }

  void set_options() {
    set_option("ledger_exports", plan_.small_tables ? 48 : 4096);
    set_option("ledger_pieces", 256);
    set_option("ledger_claims", 512);
    set_option("ledger_timelines", plan_.small_tables ? 8 : 64);
    set_option("exit_drain_ms", 50);
    if (plan_.unmaps_at_once) set_option("import_cache_pieces", 0);
  }

  void start() {
    balance_ = std::make_unique<testing::PeerBalance>();
    if (lends()) {
      bool counted = false;
      attempt(diary_, [&] {
        balance_->begin_lending();
        counted = true;
      });
      if (!counted) balance_.reset();  // a fail point was in the way: nobody knows what is its own
    }
    Device& device = process_allocator().device();
    if (lends() && plan_.little_memory) process_allocator().set_limit_bytes(0, kLittleMemory);
    const auto new_actor = [&] {
      return std::make_unique<Actor>(diary_, *birth_.post, device, plan_, random_.next(),
                                     birth_.slots);
    };
    actor_ = new_actor();
    if (!plan_.two_threads) return;
    helpers_actor_ = new_actor();
    helper_ = std::make_unique<Helper>(*helpers_actor_, page_.helper_busy_since_us);
  }

  void busy(bool is_busy) { page_.busy_since_us.store(is_busy ? now_us() : 0); }

  void say(const std::string& text) {
    (void)::send(birth_.control, text.data(), text.size(), MSG_NOSIGNAL);
  }

  // One message of the driver, if there is any. Mail ends the waiting, where it is looked for.
  std::optional<char> hear(int wait_ms, bool mail_too = true) {
    std::array<pollfd, 2> sources{pollfd{birth_.control, POLLIN, 0},
                                  pollfd{mail_too ? birth_.post->fd(plan_.slot) : -1, POLLIN, 0}};
    if (::poll(sources.data(), sources.size(), wait_ms) <= 0) return std::nullopt;
    if (sources[0].revents == 0) return std::nullopt;
    char verb = 'q';  // the driver has ended
    (void)::recv(birth_.control, &verb, 1, MSG_DONTWAIT);
    return verb;
  }

  void await_turn() {
    while (true) {
      const std::optional<char> verb = hear(1000, false);
      if (!verb) continue;
      if (*verb == 'a') break;
      obey(*verb);
    }
    diary_.line("acts");
  }

  void listen() {
    const std::optional<char> verb = hear(idle_ ? 1 : 0);
    if (verb) obey(*verb);
  }

  void obey(char verb) {
    busy(true);
    switch (verb) {
      case 'c':
        check_invariants();
        break;
      case 's':
        settle();
        break;
      case 'q':
        leave();
      default:
        break;
    }
    busy(false);
  }

  void act() {
    ++actions_;
    busy(true);
    if (actions_ > plan_.at_action) end_by_itself();
    idle_ = !actor_->act();
    busy(false);
    if (actions_ % kActionsBetweenCounts == 0) count_passings();
  }

  [[noreturn]] void leave() {
    diary_.line("exit");
    diary_.ends();
    if (helper_) helper_->pause();
    std::exit(0);
  }

  void count_passings() {
    for (std::size_t i = 0; i < kFailPointCount; ++i) {
      if (seen_passed_[i] || fail_point_passed(kFailPoints[i].name) == 0) continue;
      seen_passed_[i] = true;
      diary_.arena().passed[i].fetch_add(1);
    }
  }

  void end_by_itself() {
    if (plan_.exits) leave();
    if (plan_.loses_context && !page_.context_lost.exchange(true)) {
      diary_.line("loses its context");
      diary_.ends();
      attempt(diary_, [&] { actor_->work().lose_context(); });
      say("l");
    }
    switch (plan_.end) {
      case End::kExit:
        diary_.line("_exit");
        diary_.ends();
        ::_exit(0);
      case End::kLeave:
        leave();
      case End::kExec:
        diary_.line("exec");
        diary_.ends();
        ::execl("/bin/sleep", "sleep", "60", nullptr);
        break;
      case End::kParent:
        become_parent();
        break;
      default:
        break;
    }
  }

  // A child that inherits the life line, and work that its parent's death does not end.
  void become_parent() {
    if (is_parent_) return;
    const auto duration = std::chrono::milliseconds(random_.between(10, 60));
    bool at_work = false;
    attempt(diary_, [&] { at_work = actor_->reader().write_long(duration); });
    if (!at_work && actions_ < plan_.at_action + 40U) return;  // until there is something to write
    is_parent_ = true;
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(kForkChildSeconds);
      page_.fork_child.store(::getpid());
      if (::getppid() != parent)
        ::_exit(0);  // it died before it could be known that it has a child
      while (true) ::pause();
    }
    diary_.line("parent of %d%s", child, at_work ? ", with work" : "");
    say("p");
  }

  void check_invariants() {
    try {
      static_cast<SharingService&>(process_sharing()).check_invariants();
    } catch (const std::exception& failure) {
      diary_.found(Harm::kOther, "invariant: %s", failure.what());
    }
  }

  // ---- the balance ----------------------------------------------------------------------------

  void settle() {
    if (helper_) helper_->pause();
    actor_->give_back();
    diary_.line("settled");
    say("s");
    while (true) {
      const std::optional<char> verb = hear(1000);
      if (!verb) {
        busy(true);  // the driver is at work; it has its own deadline
        continue;
      }
      if (*verb == 'g') break;
      if (*verb == 'q') leave();
      if (*verb == 'c') check_invariants();
      if (*verb == 's') say("s");
      if (*verb == 'b' || *verb == 'B') say("b" + imbalance(*verb == 'B'));
    }
    if (helper_) helper_->resume();
  }

  std::string imbalance(bool thorough) {
    actor_->take_back();
    if (helpers_actor_) helpers_actor_->take_back();
    check_invariants();
    std::string left;
    (void)testing::eventually(
        [&] {
          busy(true);
          left = what_is_left(thorough);
          return left.empty();
        },
        birth_.balance_within);
    if (left.empty()) attempt(diary_, [&] { process_allocator().check_invariants(); });
    diary_.line("balance: %.90s", left.c_str());
    return left;
  }

  std::string what_is_left(bool thorough) {
    const SharingStats sharing = process_sharing().stats();
    std::string left;
    const auto none = [&](const char* name, auto value) {
      if (value != 0)
        left += std::string(left.empty() ? "" : ", ") + name + " " + std::to_string(value);
    };
    none("releases_pending", sharing.releases_pending);
    if (lends()) {
      attempt(diary_, [] { (void)process_sharing().collect(); });
      none("exports_open", sharing.exports_open);
      none("in_flight", sharing.in_flight);
      none("held_claims", sharing.held_claims);
      none("leases_quarantined", sharing.leases_quarantined);
      DeviceStats memory = process_allocator().stats(0);
      // What waits for an event, because of record_stream, is looked at when memory is wanted.
      const bool waits_for_event =
          memory.active_bytes[0].current != memory.allocated_bytes[0].current + memory.limbo_bytes;
      if (thorough || waits_for_event) {
        attempt(diary_, [] { process_allocator().empty_cache(); });
        memory = process_allocator().stats(0);
      }
      none("allocated", memory.allocated_bytes[0].current);
      none("active", memory.active_bytes[0].current);
      none("limbo", memory.limbo_bytes);
      if (thorough) none("reserved", memory.reserved_bytes[0].current);
    }
    if (left.empty() && balance_) left = balance_->left_behind(false, sharing);
    return left;
  }

  const Birth& birth_;
  const Plan& plan_;
  Diary diary_;
  SlotPage& page_;
  Random random_;
  std::unique_ptr<testing::PeerBalance> balance_;
  std::unique_ptr<Actor> actor_;
  std::unique_ptr<Actor> helpers_actor_;
  std::unique_ptr<Helper> helper_;
  std::array<bool, kFailPointCount> seen_passed_{};
  std::uint32_t actions_ = 0;
  bool idle_ = true;
  bool is_parent_ = false;
};

// What is left on a simulated machine when all others have ended.
std::string left_on_machine() {
  Device& device = process_allocator().device();
  if (device.name() != "simulated") return {};
  std::string left;
  (void)testing::eventually(
      [&] {
        const SimDevice::Balance balance = as_sim(device).balance();
        left.clear();
        if (balance.machine_processes != 1) {
          left = std::to_string(balance.machine_processes) + " processes";
        }
        if (balance.machine_allocations != balance.allocated) {
          left += " " + std::to_string(balance.machine_allocations) + " allocations";
        }
        return left.empty();
      },
      std::chrono::seconds(10));
  return left;
}

template <typename Life>
[[noreturn]] void live_as(const Birth& birth, Life life) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    life();
  } catch (const std::exception& failure) {
    Diary(*birth.arena, birth.plan.slot, birth.plan.incarnation)
        .found(Harm::kOther, "the process cannot go on: %s", failure.what());
    ::_exit(kCannotGoOn);
  }
  std::exit(0);
}

}  // namespace

void live(const Birth& birth) {
  live_as(birth, [&] { Process(birth).run(); });
}

void live_last(const Birth& birth) {
  live_as(birth, [&] {
    testing::PeerBalance().begin_lending();
    publish_every_name();
    process_allocator().empty_cache();
    const std::string left = left_on_machine();
    if (left.empty()) return;
    Diary(*birth.arena, birth.plan.slot, birth.plan.incarnation)
        .found(Harm::kNotBack, "left on the machine: %s", left.c_str());
  });
}

}  // namespace limbo::killmatrix
