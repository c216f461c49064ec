// What can happen next, and what it does.
#pragma once

#include <array>

#include "tests/model/explorer.h"

namespace limbo::model {

struct Moves {
  std::array<Move, 64> list;
  std::uint32_t size = 0;
  void add(Move::Kind kind, std::uint32_t who, std::uint32_t which = 0) {
    list[size++] = {kind, static_cast<std::uint8_t>(who), static_cast<std::uint8_t>(which)};
  }
};

// All that may be possible: a thread's may turn out not to be.
void list_moves(const Scenario& scenario, const World& world, Moves& moves);

// Makes the move; false if it is not possible. `ways`: the same move with another `which` below it
// is possible too.
bool make_move(const Scenario& scenario, World& world, const Move& move, std::uint32_t& ways,
               Observer* observer);

}  // namespace limbo::model
