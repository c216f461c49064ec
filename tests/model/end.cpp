// What must be so when nothing can move any more.
//
// Then the owner lets go of all, and the producer makes what it makes from time to time anyway,
// undisturbed: a collect, and where the scenario lost messages, their time limits; and somebody comes
// who wants the name, if one was taken. After that everything must be over.
#include "tests/model/moves.h"

namespace limbo::model {
namespace {

// Lets one thread work off `steps`, its stores landing in order.
bool run_alone(const Scenario& base, World& world, std::vector<Step> steps, Observer* observer) {
  Scenario alone = base;
  alone.threads = {{"the end", 0, std::move(steps)}};
  alone.may_die = 0;
  std::array<Thread, kThreads> kept = world.threads;
  for (Thread& thread : world.threads) {
    thread = {};
    thread.life = Life::kFinished;
  }
  world.threads[0].life = Life::kRuns;
  world.threads[0].head.slot.fill(kNoIndex);
  while (world.threads[0].life == Life::kRuns || world.threads[0].buffered > 0) {
    std::uint32_t ways = 1;
    const bool lands = world.threads[0].buffered > 0;
    const Move move{lands ? Move::Kind::kLanding : Move::Kind::kThread, 0, 0};
    if (!make_move(alone, world, move, ways, observer)) break;
    if (world.own.truth.broken != 0) break;
  }
  const bool done = world.threads[0].life == Life::kFinished;
  world.threads = kept;
  return done;
}

bool all_over(const Scenario& scenario, const World& world) {
  const World::Private& own = world.own;
  for (std::uint32_t index = 0; index < kExports; ++index) {
    const auto word = protocol::decode_export(world.words[export_word(index)]);
    const Record& record = own.producer.exports[index];
    if (word.state != protocol::ExportState::kFree || record.in_use || record.to_unpin)
      return false;
    if (record.held != 0 || record.list != List::kNone) return false;
  }
  for (std::uint32_t block = 0; block < scenario.blocks; ++block) {
    if (own.blocks[block].pins != 0 || own.blocks[block].listed) return false;
    if (!own.blocks[block].owned && !own.truth.reused[block]) return false;
  }
  for (std::uint32_t lease = 0; lease < kLeases; ++lease) {
    if (own.processes[lease + 1].gone) continue;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      if (world.words[claim_word(lease, slot)] != 0) return false;
    }
  }
  for (std::uint32_t piece = 0; piece < kPieces && scenario.returns_at_end; ++piece) {
    if (own.pieces[piece].refused) return false;
  }
  return world.words[kUnpinsPending] == 0 && world.words[kLockWord] == 0;
}

}  // namespace

void look_at_end(const Scenario& scenario, World& world, Observer* observer) {
  for (std::size_t i = 0; i < scenario.threads.size(); ++i) {
    if (world.threads[i].life != Life::kRuns) continue;
    if (scenario.threads[i].waits && world.threads[i].head.phase == Phase::kBegin) continue;
    return break_rule(world, Rule::kStuck, static_cast<std::uint32_t>(i));
  }
  for (const Stream& stream : world.own.streams) {
    if (stream.size > 0) return break_rule(world, Rule::kStuck);
  }
  if (world.own.processes[0].gone) return;
  std::vector<Step> steps;
  for (std::uint8_t block = 0; block < scenario.blocks; ++block) {
    if (world.own.blocks[block].owned) steps.push_back({Op::kFree, block});
  }
  if (scenario.expires_at_end) {
    for (std::uint8_t message = 0; message < scenario.messages.size(); ++message) {
      // What a forwarder has not heard of is taken back without a time limit.
      if (world.own.messages[message].sent) steps.push_back({Op::kExpire, message});
    }
  }
  if (scenario.collects_at_end || !steps.empty()) steps.push_back({Op::kCollect});
  for (std::uint8_t piece = 0; scenario.returns_at_end && piece < kPieces; ++piece) {
    if (world.own.pieces[piece].refused) steps.push_back({Op::kReturnPiece, piece});
  }
  if (scenario.takes_names) steps.insert(steps.end(), {{Op::kTakeName}, {Op::kGiveUpName}});
  if (!run_alone(scenario, world, steps, observer)) return break_rule(world, Rule::kStuck);
  if (scenario.takes_names && !name_is_over(world)) {
    return break_rule(world, Rule::kNameOfTheDead);
  }
  if (world.own.truth.broken == 0 && !all_over(scenario, world)) {
    break_rule(world, Rule::kNeverFree);
  }
}

}  // namespace limbo::model
