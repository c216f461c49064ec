// What a producer tells people: holders, statistics, invariants; and whether it may exit.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "ipc/incarnation.h"
#include "ipc/producer_impl.h"
#include "ipc/protocol/mistakes.h"

namespace limbo {
namespace {

std::string readable_bytes(std::uint64_t bytes) {
  char text[32];
  const double mebibytes = static_cast<double>(bytes) / (1024.0 * 1024.0);
  std::snprintf(text, sizeof(text), "%.2f MiB", mebibytes);
  return text;
}

struct LeaseHolding {
  std::uint64_t claims = 0;
  std::uint64_t bytes = 0;  // each block once
  ProducerClock::time_point oldest = ProducerClock::time_point::max();
};

// What a lease holds; `device` -1: on every device.
LeaseHolding held_by(const Lease& lease, Exports& exports, int device) {
  LeaseHolding held;
  std::vector<std::pair<const Block*, std::uint64_t>> blocks;
  lease.for_each_mirror([&](std::uint32_t, std::uint32_t index, ProducerClock::time_point noted) {
    const BlockView& block = exports.record(index).block;
    if (device >= 0 && block.stream.device != device) return;
    ++held.claims;
    held.oldest = std::min(held.oldest, noted);
    blocks.emplace_back(block.block, block.size_bytes);
  });
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  for (const auto& [block, bytes] : blocks) held.bytes += bytes;
  return held;
}

}  // namespace

std::vector<Holder> Producer::holders() {
  Impl& impl = *impl_;
  std::vector<Holder> holders;
  const auto now = Clock::now();
  Impl::Hold hold(impl);
  impl.run_pass(protocol::Look::kChanged);
  for (const auto& lease : impl.leases) {
    const LeaseHolding held = held_by(*lease, impl.exports, -1);
    Holder holder;
    holder.pid = lease->peer().identity.pid;
    holder.incarnation = to_string(lease->peer().identity.incarnation);
    holder.state = lease->gone ? Holder::State::kQuarantine : Holder::State::kConnected;
    holder.why = lease->why;
    holder.claims = held.claims;
    holder.bytes = held.bytes;
    for (std::uint32_t index = 0; index < impl.pieces.touched(); ++index) {
      const PieceRecord& piece = impl.pieces.record(index);
      if (!piece.in_use || !lease->maps(index, piece.generation)) continue;
      ++holder.mapped_pieces;
      holder.mapped_bytes += piece.size_bytes;
    }
    if (held.claims > 0 && held.oldest < now) {
      holder.oldest_claim =
          std::chrono::duration_cast<std::chrono::milliseconds>(now - held.oldest);
    }
    if (holder.claims > 0 || holder.mapped_pieces > 0 || lease->gone) {
      holders.push_back(std::move(holder));
    }
  }
  return holders;
}

// Pieces that the allocator has asked for in vain, because this lease maps them.
std::uint64_t Producer::Impl::wanted_back_bytes(const Lease& lease, int device_index) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t index = 0; index < pieces.touched(); ++index) {
    const PieceRecord& piece = pieces.record(index);
    if (piece.refused && piece.device == device_index && lease.maps(index, piece.generation)) {
      bytes += piece.size_bytes;
    }
  }
  return bytes;
}

std::string Producer::describe_holders(int device) {
  Impl& impl = *impl_;
  std::string text;
  const auto append = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  Impl::Hold hold(impl);
  for (const auto& lease : impl.leases) {
    const LeaseHolding held = held_by(*lease, impl.exports, device);
    std::string does;
    if (held.claims > 0) {
      does = "holds " + readable_bytes(held.bytes) + " by " + std::to_string(held.claims) +
             (held.claims == 1 ? " message" : " messages");
    }
    if (const std::uint64_t bytes = impl.wanted_back_bytes(*lease, device); bytes > 0) {
      does += (does.empty() ? "" : " and ") + ("still maps " + readable_bytes(bytes)) +
              " that should be returned";
    }
    if (does.empty()) continue;
    append("process " + std::to_string(lease->peer().identity.pid) + " " + does +
           (lease->gone ? " (it has ended; " + lease->why + ")" : ""));
  }
  std::uint64_t unopened = 0;
  std::vector<std::pair<const Block*, std::uint64_t>> blocks;
  for (std::uint32_t index = 0; index < impl.exports.slots_touched(); ++index) {
    const ExportRecord& record = impl.exports.record(index);
    if (!record.in_use || record.in_flight == 0 || record.block.stream.device != device) continue;
    ++unopened;
    blocks.emplace_back(record.block.block, record.block.size_bytes);
  }
  if (unopened > 0) {
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    std::uint64_t bytes = 0;
    for (const auto& [block, size_bytes] : blocks) bytes += size_bytes;
    append(std::to_string(unopened) + (unopened == 1 ? " message" : " messages") + " of " +
           readable_bytes(bytes) + " still to be opened");
  }
  return text.empty() ? text : "Lent memory: " + text + ".";
}

void Producer::add_stats(SharingStats& stats) {
  Impl& impl = *impl_;
  Impl::Hold hold(impl);
  const Exports::Counts& counts = impl.exports.counts();
  stats.exports_open += counts.open;
  stats.in_flight += counts.in_flight;
  stats.sends += impl.sends.load(std::memory_order_relaxed);
  stats.forwards += impl.forwards.load(std::memory_order_relaxed);
  stats.closed += counts.closed;
  stats.expired += counts.expired;
  stats.withdrawn += counts.withdrawn;
  for (const Forwarder& forwarder : impl.forwarders)
    stats.forwarders += forwarder.named > 0 ? 1 : 0;
  stats.leases_swept += impl.leases_swept;
  stats.claims_swept += impl.claims_swept;
  for (const auto& lease : impl.leases) {
    stats.held_claims += lease->mirrors();
    ++(lease->gone ? stats.leases_quarantined : stats.leases_connected);
  }
}

// A first open after the producer's end fails, so holders must have mapped what they hold; and work
// that is queued goes with the process, so what was queued before the sends must have been done. Who
// has ended opens nothing any more.
bool Producer::drained() {
  Impl& impl = *impl_;
  Impl::Hold hold(impl);
  impl.run_pass(protocol::Look::kChanged);
  if (impl.exports.counts().in_flight > 0) return false;
  for (const auto& lease : impl.leases) {
    if (lease->gone) continue;
    bool all_there = true;
    lease->for_each_mirror([&](std::uint32_t, std::uint32_t index, ProducerClock::time_point) {
      const ExportRecord& record = impl.exports.record(index);
      all_there &=
          protocol::makes(protocol::Mistake::kDrainEndsAtClaimed) ||
          lease->has_opened(record.piece_index, impl.pieces.record(record.piece_index).generation);
      for (const TimelinePoint& point : record.own) all_there &= impl.timelines.reached(point);
    });
    if (!all_there) return false;
  }
  return true;
}

void Producer::check_invariants() {
  Impl& impl = *impl_;
  Impl::Hold hold(impl);
  std::vector<std::uint32_t> mirrors(impl.exports.slots_touched());
  for (const auto& lease : impl.leases) {
    std::uint64_t counted = 0;
    lease->for_each_mirror([&](std::uint32_t slot, std::uint32_t index, ProducerClock::time_point) {
      ++counted;
      const protocol::ClaimWord noted = protocol::decode_claim(lease->mirror(slot));
      if (index >= mirrors.size() || impl.exports.record(index).generation != noted.generation) {
        throw Error(ErrorCode::kInternal, "Slot " + std::to_string(slot) + " of lease " +
                                              std::to_string(lease->number()) +
                                              " mirrors an export that does not exist.");
      }
      ++mirrors[index];
    });
    if (counted != lease->mirrors()) {
      throw Error(ErrorCode::kInternal,
                  "The mirrors of lease " + std::to_string(lease->number()) + " are miscounted.");
    }
  }
  impl.exports.check_invariants(mirrors);
  for (const Forwarder& forwarder : impl.forwarders) {
    std::uint64_t named = 0;
    for (std::uint32_t index = 0; index < impl.exports.slots_touched(); ++index) {
      const ExportRecord& record = impl.exports.record(index);
      if (!record.in_use) continue;
      named += record.forwarder == &forwarder ? 1 : 0;
      impl.exports.upstream().for_each(record.upstream,
                                       [&](const TimelinePoint&, const Forwarder& before) {
                                         named += &before == &forwarder ? 1 : 0;
                                       });
    }
    if (named != forwarder.named) {
      throw Error(ErrorCode::kInternal, "The exports that lease " +
                                            std::to_string(forwarder.lease_number) +
                                            " has forwarded are miscounted.");
    }
  }
  std::uint64_t upstream = 0;
  for (std::uint32_t index = 0; index < impl.exports.slots_touched(); ++index) {
    const ExportRecord& record = impl.exports.record(index);
    upstream += record.in_use ? record.upstream.count : 0;
    if (record.in_use && impl.pieces.find(record.block.piece_id) != record.piece_index) {
      throw Error(ErrorCode::kInternal,
                  "Export " + std::to_string(index) + " names a piece that was returned.");
    }
  }
  if (upstream != impl.exports.upstream().taken()) {
    throw Error(ErrorCode::kInternal, "The numbers that exports are behind are miscounted.");
  }
}

}  // namespace limbo
