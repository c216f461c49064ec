// What the tests of the history share: contexts that are numbers, a recording, trackers.
#pragma once

#include <atomic>
#include <bit>
#include <string>
#include <vector>

#include "tests/unit/allocator_support.h"

namespace limbo::testing {

// Contexts are numbers here, counted from 1.
inline std::atomic<int> contexts_gathered{0};
inline std::atomic<int> contexts_alive{0};

inline CallContext gather_number() {
  ++contexts_alive;
  return {new int(++contexts_gathered), [](const int* number) {
            delete number;
            --contexts_alive;
          }};
}

inline CallContext fail_to_gather() {
  throw Error(ErrorCode::kInternal, "nothing to gather");
}

inline int number_of(const CallContext& context) {
  return context == nullptr ? 0 : *static_cast<const int*>(context.get());
}

inline std::uintptr_t address_of(const void* data) {
  return std::bit_cast<std::uintptr_t>(data);
}

class AllocatorHistory : public AllocatorTest {
 protected:
  using Action = TraceAction;

  explicit AllocatorHistory(int memory_mb = 2048) : AllocatorTest(1, memory_mb) {}

  void SetUp() override { contexts_gathered = 0; }
  void TearDown() override {
    allocator_.set_history({});
    AllocatorTest::TearDown();
    heard_.clear();
    EXPECT_EQ(contexts_alive.load(), 0);
  }

  void record(ContextLevel contexts = ContextLevel::kNever, std::size_t max_entries = 1000) {
    settings_.enabled = true;
    settings_.contexts = contexts;
    settings_.max_entries = max_entries;
    settings_.gather = contexts == ContextLevel::kNever ? nullptr : gather_number;
    allocator_.set_history(settings_);
  }
  [[nodiscard]] std::vector<TraceEntry> trace() {
    return allocator_.snapshot_with_traces().traces.at(0);
  }
  [[nodiscard]] std::vector<Action> actions() { return actions_of(trace()); }
  [[nodiscard]] static std::vector<Action> actions_of(const std::vector<TraceEntry>& entries) {
    std::vector<Action> seen;
    for (const TraceEntry& entry : entries) seen.push_back(entry.action);
    return seen;
  }

  // Trackers stay to the end of the test, so what they use is the fixture's.
  void listen() {
    allocator_.add_trace_tracker([this](const TraceEntry& entry) { heard_.push_back(entry); });
  }
  void listen_and_refuse(Action refused) {
    listen();
    refuse_ = true;
    allocator_.add_trace_tracker([this, refused](const TraceEntry& entry) {
      if (refuse_ && entry.action == refused) throw Error(ErrorCode::kInternal, "refused");
    });
  }

  HistorySettings settings_;
  std::vector<TraceEntry> heard_;
  bool refuse_ = false;
  std::vector<std::string> seen_;
  bool once_ = true;
  std::atomic<int> inside_{0};
};

}  // namespace limbo::testing
