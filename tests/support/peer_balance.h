// What a peer has left behind at its end: descriptors and mappings.
#pragma once

#include <cstddef>
#include <string>

#include "tests/support/balance.h"

namespace limbo::testing {

class PeerBalance {
 public:
  // Makes what a process keeps for ever that receives. What there is then is the baseline.
  PeerBalance();

  // The same for what a process keeps that lends. Before the first allocation; once.
  void begin_lending();

  // What there is more than at the beginning, in one line; empty if nothing. What belongs to `leases`
  // connections with consumers is not counted, nor are, unless `alone`, connections with producers.
  [[nodiscard]] std::string left_behind(bool alone, std::size_t leases) const;

 private:
  [[nodiscard]] static Balance now();

  Balance before_;
  bool lending_ = false;
};

}  // namespace limbo::testing
