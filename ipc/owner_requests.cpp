#include "ipc/owner_requests.h"

#include <string>
#include <thread>
#include <utility>

#include "allocator/error.h"

namespace limbo {
namespace {

using Clock = std::chrono::steady_clock;

// For a connection that takes no more just now: its owner has much to read.
constexpr std::chrono::milliseconds kSendAgain{1};

}  // namespace

Packet OwnerRequests::ask(const std::string& what,
                          const std::function<MessageBytes(std::uint64_t)>& message) {
  const Clock::time_point until = Clock::now() + kAnswerDeadline;
  Pending pending;
  std::unique_lock lock(mutex_);
  const std::uint64_t request = ++last_request_;
  pending_.emplace(request, &pending);
  lock.unlock();

  bool sent = false;
  try {
    sent = say(message(request), until);
  } catch (...) {
    lock.lock();
    pending_.erase(request);
    throw;
  }

  lock.lock();
  if (sent) {
    changed_.wait_until(lock, until, [&] { return pending.is_answered || closed_; });
  }
  pending_.erase(request);
  if (pending.is_answered) return std::move(pending.answer);
  const bool closed = closed_;
  lock.unlock();
  throw Error(ErrorCode::kNoChannel,
              "The owner of the memory was asked to " + what +
                  (closed ? ", and the connection to it is closed."
                          : ", and has not answered within " +
                                std::to_string(kAnswerDeadline.count()) + " ms."),
              "It may be stopped, or very busy: try again, or send a clone().");
}

bool OwnerRequests::say(const MessageBytes& message, Clock::time_point until) {
  while (!connection_.send(message)) {
    std::unique_lock lock(mutex_);
    if (closed_ || Clock::now() >= until) return false;
    lock.unlock();
    std::this_thread::sleep_for(kSendAgain);
  }
  return true;
}

bool OwnerRequests::answered(std::uint64_t request, Packet&& answer) {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(request);
  if (found == pending_.end()) return false;
  found->second->answer = std::move(answer);
  found->second->is_answered = true;
  changed_.notify_all();
  return true;
}

void OwnerRequests::closed() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace limbo
