#include "tests/tools/killmatrix/plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ipc/fail_points.h"
#include "tests/tools/killmatrix/sabotage.h"

namespace limbo::killmatrix {
namespace {

constexpr std::string_view kConsumersPoints[] = {"claim.",   "dirty.",  "release.",   "receive.",
                                                 "unmap.",   "sendon.", "forwarder.", "connect.",
                                                 "decline.", "bye.",    "orphan."};

bool is_passed_when_lost(std::string_view name) {
  return name == "release.before_lost" || name == "release.after_lost" ||
         name == "release.before_retire";
}

// What leads there can be done on the simulated device only.
bool needs_simulated_device(std::string_view name) {
  return is_passed_when_lost(name) || name == "release.when_idle" || name == "release.after_park" ||
         name == "release.before_keep";
}

bool is_passed_at_exit(std::string_view name) {
  return name.starts_with("exit.");
}

// The least visited of a few random ones: every point has its turn, in no fixed order.
std::size_t pick_point(const Options& options, Random& random, Role role,
                       const std::uint64_t* killed_at) {
  std::vector<std::size_t> points;
  for (std::size_t i = 0; i < kFailPointCount; ++i) {
    const std::string_view name = kFailPoints[i].name;
    if (options.device != "simulated" && needs_simulated_device(name)) continue;
    if (belongs_to(role, name)) points.push_back(i);
  }
  std::size_t best = points[random.below(points.size())];
  for (int i = 0; i < 4; ++i) {
    const std::size_t other = points[random.below(points.size())];
    if (killed_at[other] < killed_at[best]) best = other;
  }
  return best;
}

// Early more often than late: most points are passed a few times in a short life.
std::uint32_t draw_passing(Random& random) {
  if (random.one_in(2)) return 1;
  return 1 + random.below(std::uint64_t{1} << random.below(5));
}

std::string at_passing(std::uint32_t passing) {
  return "@" + std::to_string(passing);
}

// What must fail so that the point is passed at all, with a comma before it.
std::string_view way_to(std::string_view point) {
  // Only a receive that fails before its claim says that it will not come.
  if (point == "decline.before_send") return ",receive.before_claim=error";
  // And only a connection that is given up says bye while its process goes on.
  if (point == "bye.before_send") return ",connect.after_welcome=error";
  // And what was made to be sent on is taken back where it cannot be sent.
  if (point == "sendon.before_take_back") return ",sendon.after_answer=error";
  return {};
}

bool is_passed_once(std::string_view point) {
  return is_passed_at_exit(point) || is_passed_when_lost(point) || !way_to(point).empty();
}

// A point elsewhere that is slow, or that fails.
std::string disturbance(Random& random, std::size_t taken) {
  // Two that lead to what is passed by nothing else: a decline, and a connection that is given up.
  constexpr std::string_view kWaysElsewhere[] = {"receive.before_claim", "connect.after_welcome"};
  const std::size_t point = random.one_in(4) ? fail_point_index(kWaysElsewhere[random.below(2)])
                                             : random.below(kFailPointCount);
  if (point == taken) return {};
  const std::string name(kFailPoints[point].name);
  if (kFailPoints[point].can_fail && random.one_in(2)) {
    return "," + name + "=error" + at_passing(draw_passing(random));
  }
  return "," + name + "=delay:" + std::to_string(1 + random.below(3)) +
         at_passing(draw_passing(random));
}

End random_end(Random& random) {
  const std::uint32_t choice = random.below(1000);
  if (choice < 560) return End::kFailPoint;
  if (choice < 785) return End::kKilled;
  if (choice < 800) return End::kContextLost;
  if (choice < 840) return End::kKilledYoung;
  if (choice < 880) return End::kStopped;
  if (choice < 940) return End::kParent;
  if (choice < 970) return End::kExit;
  if (choice < 975) return End::kExec;
  return End::kLeave;
}

}  // namespace

bool belongs_to(Role role, std::string_view name) {
  const bool consumers =
      std::any_of(std::begin(kConsumersPoints), std::end(kConsumersPoints),
                  [&](std::string_view prefix) { return name.starts_with(prefix); });
  return consumers == (role == Role::kConsumer);
}

Plan draw_plan(const Options& options, Random& random, Role role, const std::uint64_t* killed_at) {
  Plan plan;
  plan.role = role;
  plan.seed = random.next();
  plan.end = random_end(random);
  if (plan.end == End::kContextLost &&
      (role == Role::kProducer || options.device != "simulated" || !options.sabotage.empty())) {
    plan.end = End::kKilled;
  }
  const Sabotage& sabotage = sabotage_of(options.sabotage);
  if (sabotage.parents_one_in != 0 && random.one_in(sabotage.parents_one_in)) {
    plan.end = End::kParent;
  }
  plan.slow_writes_one_in = sabotage.slow_writes_one_in;
  plan.slow_writes_ms = sabotage.slow_writes_ms;
  plan.sends_twice = sabotage.sends_twice;
  plan.at_action = random.below(60);
  plan.small_tables = random.one_in(4);
  plan.unmaps_at_once = random.one_in(3);
  plan.little_memory = random.one_in(4);
  plan.two_threads = random.one_in(4);
  plan.lifetime = std::chrono::milliseconds(random.between(0, 2 * options.lifetime.count()));
  std::size_t taken = std::numeric_limits<std::size_t>::max();
  // At least one setting, harmless, so that passings are counted.
  plan.fail_points = "share.after_open=delay:0@1000000000";
  if (plan.end == End::kFailPoint || plan.end == End::kStopped) {
    plan.point = taken = pick_point(options, random, role, killed_at);
    const std::string_view point = kFailPoints[plan.point].name;
    if (!is_passed_once(point)) plan.at_passing = draw_passing(random);
    plan.fail_points += way_to(point);
    if (plan.end == End::kStopped) {
      plan.fail_points += "," + std::string(point) + "=stop" + at_passing(plan.at_passing);
    }
    plan.lifetime = 4 * options.lifetime;  // to get there
    plan.exits = is_passed_at_exit(point);
    plan.loses_context = is_passed_when_lost(point);
  } else if (plan.end == End::kKilledYoung) {
    plan.lifetime = std::chrono::milliseconds(random.between(0, options.lifetime.count() / 4));
  } else if (plan.end == End::kContextLost) {
    plan.loses_context = true;
  } else if (plan.end == End::kExec) {
    plan.slow_exec = random.one_in(8);
  }
  if (!options.sabotage.empty()) {
    plan.lifetime *= 4;
    plan.fail_points +=
        role == Role::kProducer ? sabotage.producers_delays : sabotage.consumers_delays;
  } else if (random.one_in(4)) {
    plan.fail_points += disturbance(random, taken);
  }
  return plan;
}

std::string describe(const Plan& plan) {
  std::string text = plan.role == Role::kProducer ? "producer, " : "consumer, ";
  switch (plan.end) {
    case End::kKilled:
      text += "killed at random";
      break;
    case End::kKilledYoung:
      text += "killed while it starts";
      break;
    case End::kFailPoint:
      text += "dies at " + std::string(kFailPoints[plan.point].name) + at_passing(plan.at_passing);
      break;
    case End::kStopped:
      text += "stops at a fail point";
      break;
    case End::kParent:
      text += "killed before its fork child";
      break;
    case End::kContextLost:
      text += "loses its context";
      break;
    case End::kExit:
      text += "_exit";
      break;
    case End::kExec:
      text += "exec";
      break;
    case End::kLeave:
      text += "exit";
      break;
  }
  const std::size_t comma = plan.fail_points.find(',');
  if (comma != std::string::npos) text += "; " + plan.fail_points.substr(comma + 1);
  if (plan.small_tables) text += "; small tables";
  if (plan.unmaps_at_once) text += "; unmaps at once";
  if (plan.little_memory && plan.role == Role::kProducer) text += "; little memory";
  if (plan.two_threads) text += "; two threads";
  return text;
}

}  // namespace limbo::killmatrix
