#include "hooks/numbers_json.h"

#include <cinttypes>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/device/device.h"
#include "allocator/error.h"
#include "allocator/options.h"
#include "hooks/json.h"
#include "hooks/process.h"
#include "ipc/probes.h"

namespace limbo {
namespace {

void write_sharing(JsonWriter& json, const SharingStats& stats) {
  json.begin_object();
  json.field("exports_open", stats.exports_open);
  json.field("in_flight", stats.in_flight);
  json.field("held_claims", stats.held_claims);
  json.field("sends", stats.sends);
  json.field("forwards", stats.forwards);
  json.field("forwarders", stats.forwarders);
  json.field("forwarders_met", stats.forwarders_met);
  json.field("closed", stats.closed);
  json.field("expired", stats.expired);
  json.field("withdrawn", stats.withdrawn);
  json.field("leases_connected", stats.leases_connected);
  json.field("leases_quarantined", stats.leases_quarantined);
  json.field("leases_swept", stats.leases_swept);
  json.field("claims_swept", stats.claims_swept);
  json.field("receives", stats.receives);
  json.field("releases", stats.releases);
  json.field("releases_pending", stats.releases_pending);
  json.field("double_releases", stats.double_releases);
  json.field("pieces_mapped", stats.pieces_mapped);
  json.field("opens", stats.opens);
  json.field("closes", stats.closes);
  json.end_object();
}

void write_device(JsonWriter& json, int device, const DeviceStats& stats) {
  constexpr auto kAll = static_cast<std::size_t>(SizeKind::kAll);
  json.begin_object();
  json.field("device", device);
  json.field("limbo_blocks", stats.limbo_blocks);
  json.field("limbo_bytes", stats.limbo_bytes);
  json.field("held_for_readers_bytes", stats.held_for_readers_bytes);
  json.field("allocated_bytes", stats.allocated_bytes[kAll].current);
  json.field("active_bytes", stats.active_bytes[kAll].current);
  json.field("reserved_bytes", stats.reserved_bytes[kAll].current);
  json.end_object();
}

void write_holder(JsonWriter& json, const Holder& holder) {
  json.begin_object();
  json.field("pid", holder.pid);
  json.field("incarnation", std::string_view(holder.incarnation));
  json.field("state", std::string_view(holder.state == Holder::State::kConnected ? "connected"
                                                                                 : "quarantine"));
  json.field("why", std::string_view(holder.why));
  json.field("claims", holder.claims);
  json.field("bytes", holder.bytes);
  json.field("mapped_pieces", holder.mapped_pieces);
  json.field("mapped_bytes", holder.mapped_bytes);
  json.field("oldest_claim_ms", holder.oldest_claim.count());
  json.end_object();
}

// The fields that name a process.
void write_process(JsonWriter& json, const LendingProcess& process) {
  json.field("pid", process.pid);
  json.field("incarnation", incarnation_text(process.incarnation));
  json.field("directory", process.directory);
}

// What the driver says of one GPU; nothing but the error where it cannot be asked.
void write_visible_device(JsonWriter& json, Device& device, int index) {
  MemoryInfo memory;
  std::string uuid;
  std::string error;
  try {
    memory = device.memory_info(index);
    uuid = to_string(device.uuid(index));
  } catch (const Error& failure) {
    error = failure.what();
  }
  json.begin_object();
  json.field("index", index);
  if (error.empty()) {
    json.field("uuid", uuid);
    json.field("total_bytes", memory.total_bytes);
    json.field("free_bytes", memory.free_bytes);
  } else {
    json.field("error", error);
  }
  json.end_object();
}

template <typename Lines, typename Write>
std::string list_of(const Lines& lines, Write&& write) {
  JsonWriter json;
  json.begin_array();
  for (const auto& line : lines) write(json, line);
  json.end_array();
  return json.text();
}

}  // namespace

std::string incarnation_text(const Incarnation& incarnation) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, incarnation.high, incarnation.low);
  return text;
}

std::string holders_json() {
  return list_of(in_use() ? sharing_in_use().holders() : std::vector<Holder>{}, write_holder);
}

std::string holders_json(const LendingProcess& process) {
  return list_of(sharing_in_use().holders_of(process), write_holder);
}

std::string processes_json() {
  return list_of(sharing_in_use().processes(), [](JsonWriter& json, const LendingProcess& process) {
    json.begin_object();
    write_process(json, process);
    json.end_object();
  });
}

std::string names_json() {
  return list_of(sharing_in_use().names(), [](JsonWriter& json, const PublishedName& published) {
    json.begin_object();
    json.field("name", published.name);
    write_process(json, published.owner);
    json.end_object();
  });
}

std::string stats_json() {
  JsonWriter json;
  json.begin_object();
  json.key("sharing");
  write_sharing(json, in_use() ? sharing_in_use().stats() : SharingStats{});
  json.key("devices");
  json.begin_array();
  if (in_use()) {
    Allocator& allocator = allocator_in_use();
    const int count = allocator.device().device_count();
    for (int device = 0; device < count; ++device) {
      write_device(json, device, allocator.stats(device));
    }
  }
  json.end_array();
  json.end_object();
  return json.text();
}

std::string devices_json() {
  if (in_forked_child()) (void)allocator_in_use();  // says so; the device is the parent's
  Device& device = process_device();
  std::vector<int> indices(static_cast<std::size_t>(device.device_count()));
  std::iota(indices.begin(), indices.end(), 0);
  return list_of(indices,
                 [&](JsonWriter& json, int index) { write_visible_device(json, device, index); });
}

std::string probes_json(int device) {
  std::vector<std::pair<std::string_view, Probe>> probes{
      {"runtime directory", probe_runtime_directory()},
      {"pidfd", probe_pidfd()},
      {"life line", probe_life_line()},
      {"memfd seals", probe_memfd_seals()},
  };
  if (device >= 0) {
    probes.emplace_back("stream memory operations",
                        probe_stream_memory_operations(process_device(), device));
  }
  return list_of(probes, [](JsonWriter& json, const auto& named) {
    json.begin_object();
    json.field("name", named.first);
    json.field("works", named.second.works);
    json.field("seen", named.second.seen);
    json.field("advice", named.second.advice);
    json.end_object();
  });
}

std::string options_json() {
  JsonWriter json;
  json.begin_array();
  for (const OptionValue& option : option_table()) {
    json.begin_object();
    json.field("name", option.spec.name);
    json.field("unit", option.spec.unit);
    json.field("minimum", option.spec.minimum);
    json.field("maximum", option.spec.maximum);
    json.field("default", option.spec.default_value);
    json.field("value", option.value);
    json.field("meaning", option.spec.meaning);
    json.end_object();
  }
  json.end_array();
  return json.text();
}

}  // namespace limbo
