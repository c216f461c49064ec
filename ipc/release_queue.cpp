// The way of a release: where it goes, and when it is looked at again.
#include "ipc/release_queue.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "allocator/error.h"
#include "ipc/fail_points.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kLookAgainWaiting{2};
constexpr std::chrono::milliseconds kLookAgainCaptured{10};
constexpr std::chrono::milliseconds kLookAgainLanding{50};

// Held by a graph.
class GraphToken {
 public:
  GraphToken(std::shared_ptr<GraphEnd> end, std::function<void()> ring)
      : end_(std::move(end)), ring_(std::move(ring)) {}
  // On a thread of the driver's: no device call.
  ~GraphToken() {
    end_->over.store(true, std::memory_order_release);
    ring_();
  }
  GraphToken(const GraphToken&) = delete;
  GraphToken& operator=(const GraphToken&) = delete;

 private:
  std::shared_ptr<GraphEnd> end_;
  std::function<void()> ring_;
};

}  // namespace

bool ReleaseQueue::Alike::operator<(const Alike& other) const noexcept {
  if (link != other.link) return link < other.link;
  return std::lexicographical_compare(
      streams.begin(), streams.end(), other.streams.begin(), other.streams.end(),
      [](const StreamUse& a, const StreamUse& b) {
        return std::tie(a.stream.device, a.id) < std::tie(b.stream.device, b.id);
      });
}

ReleaseQueue::ReleaseQueue(Device& device, ServiceThread& releaser, ServiceThread& unmapper)
    : device_(device),
      releaser_(releaser),
      unmapper_(unmapper),
      room_(device),
      bell_(std::make_shared<Bell>()) {
  bell_->thread = &releaser;
}

ReleaseQueue::~ReleaseQueue() {
  const std::lock_guard lock(bell_->mutex);
  bell_->thread = nullptr;
}

void ReleaseQueue::release(ReleaseJobs one) noexcept {
  if (stopped_.load()) return;
  begun(one.front());
  start(one, true);
  releaser_.nudge();
}

void ReleaseQueue::begun(const ReleaseJob& job) noexcept {
  pending_.fetch_add(1);
  job.link->release_begun();
}

void ReleaseQueue::over(const ReleaseJob& job) noexcept {
  job.link->release_over();
  pending_.fetch_sub(1);
}

std::shared_ptr<const GraphEnd> ReleaseQueue::end_of_graph(StreamRef stream) {
  auto end = std::make_shared<GraphEnd>();
  auto token = std::make_shared<GraphToken>(end, [bell = bell_] {
    const std::lock_guard lock(bell->mutex);
    if (bell->thread != nullptr) bell->thread->ring();
  });
  LIMBO_FAIL_POINT("release.before_keep");
  if (!device_.keep_while_graph_lives(stream, std::move(token))) return nullptr;
  return end;
}

void ReleaseQueue::put(ReleaseJobs& where, ReleaseJobs& jobs) noexcept {
  const std::lock_guard lock(mutex_);
  where.splice(where.end(), jobs);
}

// The first attempt is `fresh`: only what is captured just then can have used the block.
void ReleaseQueue::start(ReleaseJobs& one, bool fresh) noexcept {
  const StreamQuestion question(device_);
  try {
    switch (way_of(one.front(), fresh, question)) {
      case Way::kEnqueue:
        enqueue_or_wait(one);
        return;
      case Way::kPark:
        put(parked_, one);
        LIMBO_FAIL_POINT("release.after_park");
        return;
      case Way::kWhenIdle:
        put(idle_, one);
        unmapper_.nudge();
        return;
      case Way::kLost:
        end_lost(one);
        return;
      case Way::kKeep:
        keep(one, "a graph uses it, and the driver cannot tell of the graph's end");
        return;
    }
  } catch (const std::exception&) {
    // No host memory, most likely. (What the device refuses is met where it is asked.)
    put(failed_, one);
  }
}

// Asked right before enqueueing, however late that is. A handle that means another stream by now, or
// none, tells nothing about the work that used the block.
ReleaseQueue::Way ReleaseQueue::way_of(ReleaseJob& job, bool fresh,
                                       const StreamQuestion& question) {
  leave_lost_streams(job);
  if (ends_as_lost(job)) return Way::kLost;
  if (any_lives(job.graphs)) return Way::kPark;
  if (job.in_graph || job.unknown_graph) return Way::kWhenIdle;
  bool captured = false;
  try {
    // First, since asking a stream that is captured for its id would break the capture.
    for (const StreamUse& use : job.streams) captured |= device_.is_capturing(use.stream);
    if (!captured && !question) return Way::kPark;  // what is captured from now on did not use it
    for (const StreamUse& use : job.streams) {
      if (captured) break;
      if (use.id == kNamedInCapture || device_.stream_id(use.stream) != use.id) {
        return Way::kWhenIdle;
      }
    }
  } catch (const Error&) {
    return names_lost(job.streams, true) ? way_of(job, fresh, question) : Way::kWhenIdle;
  }
  if (!captured) return Way::kEnqueue;
  if (!fresh) return Way::kPark;
  try {
    job.graphs.reserve(job.graphs.size() + job.streams.size());
    for (const StreamUse& use : job.streams) {
      if (auto end = end_of_graph(use.stream)) job.graphs.push_back(std::move(end));
    }
  } catch (const std::exception&) {
    return names_lost(job.streams, true) ? way_of(job, fresh, question) : Way::kKeep;
  }
  return Way::kPark;
}

void ReleaseQueue::enqueue_or_wait(ReleaseJobs& one) {
  const ReleaseJob& job = one.front();
  const auto key = [&] { return Alike{job.link.get(), job.streams}; };
  {
    const std::lock_guard lock(mutex_);
    const auto group = waiting_.empty() ? waiting_.end() : waiting_.find(key());
    if (group != waiting_.end()) {
      group->second.splice(group->second.end(), one);
      return;
    }
  }
  std::list<Batch> batch(1);
  std::optional<StreamRoom::Taken> room;
  try {
    for (int attempt = 0; attempt < 2 && !room; ++attempt) {
      if (attempt > 0) poll();
      room = room_.take(job.streams, job.streams.size() > 1, job.streams.front().stream.device);
    }
  } catch (const Error&) {  // no lane could be made
    batch.front().jobs.splice(batch.front().jobs.end(), one);
    not_enqueued(batch.front(), true);
    return;
  }
  if (room) {
    batch.front().room = std::move(*room);
    batch.front().jobs.splice(batch.front().jobs.end(), one);
    enqueue(batch);
    return;
  }
  const std::lock_guard lock(mutex_);
  ReleaseJobs& group = waiting_[key()];
  group.splice(group.end(), one);
}

std::optional<ReleaseQueue::Clock::time_point> ReleaseQueue::run(Clock::time_point now) {
  if (stopped_.load()) return std::nullopt;
  poll();
  look_for_losses(now);
  ReleaseJobs again;
  {
    const std::lock_guard lock(mutex_);
    again.splice(again.end(), failed_);
    for (auto job = parked_.begin(); job != parked_.end();) {
      const auto current = job++;
      if (!any_lives(current->graphs)) again.splice(again.end(), parked_, current);
    }
  }
  while (!again.empty()) {
    ReleaseJobs one;
    one.splice(one.begin(), again, again.begin());
    start(one, false);
  }
  enqueue_waiting();

  const std::lock_guard lock(mutex_);
  if (!waiting_.empty()) return now + kLookAgainWaiting;
  const bool captured = std::any_of(parked_.begin(), parked_.end(),
                                    [](const ReleaseJob& job) { return !any_lives(job.graphs); });
  if (captured) return now + kLookAgainCaptured;
  if (landing_.empty() && parked_.empty() && failed_.empty()) return std::nullopt;
  return now + kLookAgainLanding;
}

}  // namespace limbo
