#include <cstdio>

#include "tests/model/moves.h"

namespace limbo::model {
namespace {

const char* const kStates[] = {"FREE", "OPEN", "DRAINING", "CLOSING", "?", "?", "?", "?"};
const char* const kClaims[] = {"FREE", "HELD", "RELEASED", "?"};

std::string name_of(Word word) {
  const auto numbered = [](const char* text, std::uint32_t number) {
    return text + std::to_string(number);
  };
  if (word == kLockWord) return "lock";
  if (word == kUnpinsPending) return "unpins pending";
  if (word == kLeaseList) return "list of leases";
  if (word < kFirstExport) return numbered("piece ", word - kFirstPiece);
  if (word < kFirstLease) {
    const std::uint32_t index = word - kFirstExport;
    return numbered(index % 2 == 0 ? "export " : "fields of export ", index / 2);
  }
  if (word >= kFirstNewLink) {
    return "new link of process " + std::to_string(word - kFirstNewLink);
  }
  if (word == kName) return "NAME";
  if (word == kNamesLock) return "lock of the names";
  if (word >= kFirstEnd) return numbered("end of timeline ", word - kFirstEnd);
  if (word >= kFirstData) return numbered("data of block ", word - kFirstData);
  if (word >= kFirstTimeline) return numbered("timeline ", word - kFirstTimeline);
  const std::uint32_t lease = (word - kFirstLease) / kLeaseWords;
  const std::uint32_t index = (word - kFirstLease) % kLeaseWords;
  std::string name;
  if (index < 2) {
    name = index == 0 ? "lease dirty (host)" : "lease dirty (GPU)";
  } else if (index < 2 + 2 * kGroups) {
    name =
        numbered("group ", (index - 2) / 2) + (index % 2 == 0 ? " dirty (host)" : " dirty (GPU)");
  } else if (index < 2 + 2 * kGroups + kSlots) {
    name = numbered("claim ", index - 2 - 2 * kGroups);
  } else {
    name = numbered("mark of piece ", index - 2 - 2 * kGroups - kSlots);
  }
  return numbered("consumer ", lease + 1) + "'s " + name;
}

std::string value_of(Word word, std::uint32_t value) {
  if (word >= kFirstExport && word < kFirstLease && (word - kFirstExport) % 2 == 0) {
    const auto decoded = protocol::decode_export(value);
    return std::string(kStates[static_cast<int>(decoded.state)]) + ", generation " +
           std::to_string(decoded.generation);
  }
  if (word >= kNamesLock) {
    return value == 0 ? "nobody's" : "process " + std::to_string(value - 1) + "'s";
  }
  const std::uint32_t index = (word - kFirstLease) % kLeaseWords;
  if (word >= kFirstLease && word < kFirstTimeline && index >= 2 + 2 * kGroups &&
      index < 2 + 2 * kGroups + kSlots) {
    const auto decoded = protocol::decode_claim(value);
    return value == 0 ? "FREE"
                      : std::string(kClaims[static_cast<int>(decoded.state)]) + " on export " +
                            std::to_string(decoded.export_index) + ", generation " +
                            std::to_string(decoded.generation);
  }
  return std::to_string(value);
}

const char* name_of(Op op) {
  static const char* const kNames[] = {"share",
                                       "free",
                                       "collect",
                                       "look thoroughly",
                                       "withdraw",
                                       "expire",
                                       "add lease",
                                       "sweep",
                                       "take a decline",
                                       "take a forward",
                                       "take back",
                                       "return piece",
                                       "exit",
                                       "await readers",
                                       "write",
                                       "receive",
                                       "release by host",
                                       "release by GPU",
                                       "release both by GPU",
                                       "poll",
                                       "decline",
                                       "forward",
                                       "lose context",
                                       "unmap",
                                       "end timeline",
                                       "take the name",
                                       "give up the name",
                                       "close its socket"};
  return kNames[static_cast<std::size_t>(op)];
}

class Listing : public Observer {
 public:
  void access(const char* what, Word word, std::uint32_t value) override {
    text += std::string(text.empty() ? "" : "; ") + what;
    if (word != kNowhere) text += " " + name_of(word) + ": " + value_of(word, value);
  }
  std::string text;
};

std::string subject_of(const Scenario& scenario, const World& world, const Move& move) {
  switch (move.kind) {
    case Move::Kind::kThread:
    case Move::Kind::kLanding: {
      const Script& script = scenario.threads[move.who];
      std::string text(script.name);
      const std::uint32_t at = world.threads[move.who].head.at;
      if (move.kind == Move::Kind::kLanding || at >= script.steps.size()) return text;
      const Step& step = script.steps[at];
      if (is_of_names(step.op)) return text + " (" + name_of(step.op) + ")";
      return text + " (" + name_of(step.op) + " " + std::to_string(step.what) + ")";
    }
    case Move::Kind::kStream:
      return "stream " + std::to_string(move.who);
    case Move::Kind::kDeath:
      return "process " + std::to_string(move.who) + " dies";
    case Move::Kind::kQuiet:
      return "process " + std::to_string(move.who) + " is quiet";
  }
  return "";
}

}  // namespace

std::string describe(const Scenario& scenario, const std::vector<Move>& path) {
  World world = beginning(scenario);
  std::string text;
  for (std::size_t i = 0; i < path.size(); ++i) {
    Listing listing;
    std::uint32_t ways = 1;
    std::string line = subject_of(scenario, world, path[i]);
    make_move(scenario, world, path[i], ways, &listing);
    if (!listing.text.empty()) line += ": " + listing.text;
    text += "  " + std::to_string(i + 1) + ". " + line + "\n";
  }
  if (world.own.truth.broken == 0) {
    text += "  Nothing can move any more.\n";
    Listing listing;
    look_at_end(scenario, world, &listing);
    text += "  The last look: " + listing.text + "\n";
  }
  return text;
}

}  // namespace limbo::model
