#include "hooks/settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/options.h"
#include "allocator/sizes.h"
#include "hooks/install.h"
#include "hooks/process.h"

namespace limbo {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

// The one that follows; null before there is one. Written once.
std::atomic<Allocator*> follower{nullptr};

// torch reads the first of these that is set.
std::string allocator_settings() {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (const char* text = std::getenv(name)) return text;
  }
  return {};
}

// True at the first call for each key.
bool first_warning(const std::string& key) {
  static std::mutex mutex;  // guards warned; a leaf
  static auto* warned = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return warned->insert(key).second;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// What follows `key:` at the outer level of the settings; nothing if the key is not there.
std::optional<std::string_view> value_of(std::string_view text, std::string_view key) {
  int depth = 0;  // inside "[...]" there are values only
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    const char c = at < text.size() ? text[at] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c != ',' || (depth != 0 && at < text.size())) continue;
    const std::string_view entry = text.substr(begin, at - begin);
    begin = at + 1;
    const std::size_t colon = std::min(entry.find(':'), entry.size());
    if (trimmed(entry.substr(0, colon)) != key) continue;
    return trimmed(entry.substr(std::min(colon + 1, entry.size())));
  }
  return std::nullopt;
}

void warn() {
  if (AcceleratorAllocatorConfig::use_expandable_segments() &&
      first_warning("expandable_segments")) {
    TORCH_WARN("limbo: expandable_segments:True has no effect yet; segments come from cudaMalloc.");
  }
}

void apply_settings(Allocator& allocator) {
  // So that of two threads that change the settings the later one's are not replaced by what the
  // other had read. Calls nothing but the allocator, which only stores them.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  allocator.set_policy(policy_in_settings());
}

void settings_changed() {
  if (in_forked_child()) return;
  Allocator* const allocator = follower.load(std::memory_order_acquire);
  if (allocator != nullptr) apply_settings(*allocator);
  if (allocator != nullptr || installation_complete()) warn();
}

}  // namespace

bool settings_name(std::string_view text, std::string_view key) {
  return value_of(text, key).has_value();
}

void require_settings_allow() {
  require_readable_options();
  const std::string settings = allocator_settings();
  if (settings_name(settings, "backend")) {
    throw Error(ErrorCode::kBadArgument,
                "The allocator settings of torch name a backend (\"" + settings +
                    "\"), and torch accepts none but its own there.",
                "Take `backend:` out of PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.");
  }
  try {
    (void)AcceleratorAllocatorConfig::instance();                            // parses them, once
    (void)c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::instance();  // and CUDA's own
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kBadArgument, "torch refuses its allocator settings (\"" + settings +
                                             "\"): " + error.what_without_backtrace());
  } catch (const std::logic_error& error) {  // of std::stoull and its like, for what is no number
    throw Error(ErrorCode::kBadArgument, "torch refuses its allocator settings (\"" + settings +
                                             "\"): " + error.what() + ": no number, or too great.");
  }
}

AllocationPolicy policy_in_settings() {
  AllocationPolicy policy;
  policy.large_segment_bytes =
      sizes::round_up(AcceleratorAllocatorConfig::large_segment_size(), sizes::kSegmentUnit);
  policy.max_split_size_bytes = std::max(AcceleratorAllocatorConfig::max_split_size(),
                                         policy.large_segment_bytes + sizes::kBlockUnit);
  policy.max_non_split_rounding_bytes = std::max(
      AcceleratorAllocatorConfig::max_non_split_rounding_size(), policy.large_segment_bytes);
  policy.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  policy.reuse_in_capture =
      c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::graph_capture_record_stream_reuse();
  const auto& divisions = AcceleratorAllocatorConfig::roundup_power2_divisions();
  for (std::size_t i = 0; i < policy.roundup_power2_divisions.size() && i < divisions.size(); ++i) {
    policy.roundup_power2_divisions[i] = divisions[i];
  }
  return policy;
}

void follow_settings(Allocator& allocator) {
  follower.store(&allocator, std::memory_order_release);  // before they are read: none is missed
  apply_settings(allocator);
}

void follow_later_settings() {
  auto others = AcceleratorAllocatorConfig::getConfigParserHook();
  AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      [others = std::move(others)](const std::string& text) {
        // c10 has set its own part by now, which is the one that is read here, and keeps it when
        // the others' is refused.
        settings_changed();
        if (!others) return;
        others(text);
        settings_changed();  // theirs are read too
      },
      {});
}

void warn_about_settings() {
  warn();
}

}  // namespace limbo
