// What a peer has left behind at its end: descriptors and mappings.
#pragma once

#include <cstddef>
#include <string>

#include "ipc/sharing.h"
#include "tests/support/balance.h"

namespace limbo::testing {

class PeerBalance {
 public:
  // Makes what a process keeps for ever that receives. What there is then is the baseline.
  PeerBalance();

  // The same for what a process keeps that lends. Before the first allocation; once.
  void begin_lending();

  // What there is more than at the beginning, in one line; empty if nothing. What belongs to the
  // connections with consumers that `stats` counts is not, nor are, unless `alone`, connections with
  // producers, nor what is kept about processes that have sent memory on and live.
  [[nodiscard]] std::string left_behind(bool alone, const SharingStats& stats) const;

 private:
  [[nodiscard]] static Balance now();

  Balance before_;
  bool lending_ = false;
};

}  // namespace limbo::testing
