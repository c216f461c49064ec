// Larger scenarios, for a machine with many cores.
#include "tests/model/scenario_lists.h"

namespace limbo::model {

std::vector<Scenario> long_scenarios() {
  return {
      {.name = "two-threads-each",
       .what = "a message for two processes, opened by two threads of each",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare}, {Op::kFree}, {Op::kCollect}, {Op::kCollect}}},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"first again", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"second again", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.consumers = 2, .promised = 3}},
       .slots_per_group = 2,
       .connected = 3},
      {.name = "two-threads-and-one",
       .what = "the same, the second process with one thread",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare}, {Op::kFree}, {Op::kCollect}, {Op::kCollect}}},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"first again", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.consumers = 2, .promised = 3}},
       .slots_per_group = 2,
       .connected = 3},
      {.name = "both-readers-killed",
       .what = "two readers are killed anywhere; a stream writes until its process is quiet",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}}},
                   {"reaper", kProducer, {{Op::kSweep, 0}}, true},
                   {"reaper too", kProducer, {{Op::kSweep, 1}}, true},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseGpu, 0, 0, 0}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.consumers = 2, .promised = 3}},
       .streams = {kFirst},
       .connected = 3,
       .may_die = 1 << kFirst | 1 << kSecond,
       .deaths = 2,
       .expires_at_end = true},
      {.name = "one-of-three-killed",
       .what = "one of three readers is killed anywhere, the others go on",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}}},
                   {"reaper", kProducer, {{Op::kSweep, 2}}, true},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"third", kThird, {{Op::kReceive}, {Op::kReleaseGpu, 0, 0, 0}}}},
       .messages = {{.consumers = 3, .promised = 7}},
       .streams = {kThird},
       .connected = 7,
       .may_die = 1 << kThird,
       .deaths = 1,
       .expires_at_end = true},
      {.name = "killed-readers",
       .what =
           "two of three readers are killed anywhere; a stream writes until its process is quiet",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}}},
                   {"reaper", kProducer, {{Op::kSweep, 0}}, true},
                   {"reaper too", kProducer, {{Op::kSweep, 1}}, true},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseGpu, 0, 0, 0}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"third", kThird, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.consumers = 3, .promised = 7}},
       .streams = {kFirst},
       .connected = 7,
       .may_die = 1 << kFirst | 1 << kSecond,
       .deaths = 2,
       .expires_at_end = true},
      {.name = "many-collectors",
       .what = "two threads collect, a third looks for the last time; two readers",
       .threads = {{"owner", kProducer, {{Op::kShare}, {Op::kFree}, {Op::kCollect}}},
                   {"helper", kProducer, {{Op::kCollect}}},
                   {"allocator", kProducer, {{Op::kLookThoroughly}}},
                   {"first", kFirst, {{Op::kReceive}, {Op::kReleaseHost}}},
                   {"second", kSecond, {{Op::kReceive}, {Op::kReleaseHost}}}},
       .messages = {{.consumers = 2, .promised = 3}},
       .connected = 3},
      {.name = "two-generations-two-readers",
       .what = "two sends in one slot, each with a reader, and a second collector",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare, 0},
                     {Op::kFree, 0},
                     {Op::kCollect},
                     {Op::kShare, 1},
                     {Op::kFree, 1},
                     {Op::kCollect}}},
                   {"helper", kProducer, {{Op::kCollect}}},
                   {"first", kFirst, {{Op::kReceive, 0}, {Op::kReleaseHost, 0}}},
                   {"second", kSecond, {{Op::kReceive, 1}, {Op::kReleaseHost, 1}}}},
       .messages = {{.block = 0, .consumers = 1}, {.block = 1, .promised = 2}},
       .blocks = 2,
       .connected = 3,
       .reads_fields = true},
      {.name = "two-generations-three-readers",
       .what = "the same with a reader more and no second collector",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare, 0},
                     {Op::kFree, 0},
                     {Op::kCollect},
                     {Op::kShare, 1},
                     {Op::kFree, 1},
                     {Op::kCollect}}},
                   {"first", kFirst, {{Op::kReceive, 0}, {Op::kReleaseHost, 0}}},
                   {"second", kSecond, {{Op::kReceive, 1}, {Op::kReleaseHost, 1}}},
                   {"third", kThird, {{Op::kReceive, 0}, {Op::kReleaseHost, 0}}}},
       .messages = {{.block = 0, .consumers = 1}, {.block = 1, .promised = 2}},
       .blocks = 2,
       .connected = 7,
       .reads_fields = true},
      {.name = "two-generations",
       .what = "two sends in one slot, three readers, a second collector",
       .threads = {{"owner",
                    kProducer,
                    {{Op::kShare, 0},
                     {Op::kFree, 0},
                     {Op::kCollect},
                     {Op::kShare, 1},
                     {Op::kFree, 1},
                     {Op::kCollect}}},
                   {"helper", kProducer, {{Op::kCollect}}},
                   {"first", kFirst, {{Op::kReceive, 0}, {Op::kReleaseHost, 0}}},
                   {"second", kSecond, {{Op::kReceive, 1}, {Op::kReleaseHost, 1}}},
                   {"third", kThird, {{Op::kReceive, 0}, {Op::kReleaseHost, 0}}}},
       .messages = {{.block = 0, .consumers = 1}, {.block = 1, .promised = 2}},
       .blocks = 2,
       .connected = 7,
       .reads_fields = true},
      {.name = "forward-and-die",
       .what = "forwarder and third process are killed anywhere",
       .threads = {{"owner", kProducer, {{Op::kShare, 0}, {Op::kFree}, {Op::kCollect}}},
                   {"connections", kProducer, {{Op::kTakeForward}, {Op::kTakeBack, 1}}, true},
                   {"reaper", kProducer, {{Op::kSweep, 0}}, true},
                   {"reaper too", kProducer, {{Op::kSweep, 1}}, true},
                   {"first",
                    kFirst,
                    {{Op::kReceive, 0, 0}, {Op::kForward, 1, 0}, {Op::kReleaseGpu, 0, 0, 0}}},
                   {"second", kSecond, {{Op::kReceive, 1, 0}, {Op::kReleaseHost, 1, 0}}, true}},
       .messages = {{.promised = 1}, {.promised = 2, .forwards = 0}},
       .streams = {kFirst},
       .connected = 3,
       .may_die = 1 << kFirst | 1 << kSecond,
       .deaths = 2,
       .expires_at_end = true},
      {.name = "first-of-a-chain-dies",
       .what = "of three in a chain the first is killed under its write; the last is told",
       .threads =
           {{"owner", kProducer, {{Op::kShare, 0}}},
            {"connections", kProducer, {{Op::kTakeForward}, {Op::kTakeForward}}, true},
            {"first", kFirst, {{Op::kReceive, 0, 0}, {Op::kWrite, 0, 2, 0}, {Op::kForward, 1, 0}}},
            {"second",
             kSecond,
             {{Op::kReceive, 1, 0, 1}, {Op::kForward, 2, 0}, {Op::kReleaseGpu, 1, 0, 1}},
             true},
            {"third", kThird, {{Op::kReceive, 2, 0, 2}, {Op::kReleaseGpu, 2, 0, 2}}, true},
            {"its reaper", kThird, {{Op::kEnd, 0, kFirst, 0}, {Op::kEnd, 0, kFirst, 1}}, true},
            {"sweeper", kProducer, {{Op::kSweep, 0}, {Op::kTakeBack, 1}}, true},
            {"too late", kProducer, {{Op::kTakeBack, 2}}, true}},
       .messages = {{.promised = 1},
                    {.current_stream = 0, .home_stream = 0, .forwards = 0, .data = 2},
                    {.current_stream = 1, .home_stream = 1, .forwards = 1, .data = 2}},
       .streams = {kFirst, kSecond, kThird},
       .connected = 7,
       .may_die = 1 << kFirst,
       .deaths = 1,
       .expires_at_end = true,
       .finds = {protocol::Mistake::kUpstreamForgotten}},
  };
}

Scenario finished(Scenario scenario) {
  for (const Script& script : scenario.threads) {
    for (const Step& step : script.steps) {
      scenario.awaits_unpins |= step.op == Op::kLookThoroughly;
      scenario.lists_change |= step.op == Op::kAddLease;
      scenario.ends_timelines |= step.op == Op::kEnd;
      scenario.takes_names |= step.op == Op::kTakeName;
    }
  }
  for (std::size_t i = 0; i < scenario.threads.size(); ++i) {
    const bool alike = i > 0 && scenario.threads[i].process == scenario.threads[i - 1].process &&
                       scenario.threads[i].steps == scenario.threads[i - 1].steps &&
                       scenario.threads[i].waits == scenario.threads[i - 1].waits;
    scenario.like_the_one_before.push_back(alike);
  }
  return scenario;
}

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = [] {
    std::vector<Scenario> made;
    for (const Scenario& scenario : short_scenarios()) made.push_back(finished(scenario));
    for (Scenario& scenario : long_scenarios()) {
      scenario.in_short_run = false;
      made.push_back(finished(scenario));
    }
    return made;
  }();
  return all;
}

}  // namespace limbo::model
