// What the ledger says about an export.
#pragma once

#include <cstdint>
#include <vector>

#include "ipc/import_cache.h"
#include "ipc/layout.h"

namespace limbo {

// What the ledger says about an export, read once, after the claim stands.
struct ExportFacts {
  PieceFacts piece;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  TimelinePoint points[2];
  // Of those who sent it on before its sender: what was on its way then, and whether anything was
  // known never to come.
  std::vector<TimelinePoint> upstream;
  bool upstream_lost = false;
};

}  // namespace limbo
