#include "ipc/links.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "allocator/error.h"
#include "ipc/fork_guard.h"
#include "ipc/life_line.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kSettleAgain{100};

}  // namespace

Links::Links(Device& device, const Incarnation& own, ServiceThread& reaper, ServiceThread& unmapper)
    : device_(device), own_(own), reaper_(reaper), unmapper_(unmapper) {
  reaper_.post([this] {
    reaper_.add_periodic([this](ServiceThread::Clock::time_point now) { return run(now); });
  });
  unmapper_.post([this] {
    unmapper_.add_periodic([this](ServiceThread::Clock::time_point)
                               -> std::optional<ServiceThread::Clock::time_point> {
      // Once the process is ending, nothing calls the device.
      if (has_left() || drop_unwatched()) return std::nullopt;
      return ServiceThread::Clock::now() + kSettleAgain;
    });
  });
}

std::optional<ServiceThread::Clock::time_point> Links::run(ServiceThread::Clock::time_point now) {
  unwatch_forgotten();
  std::optional<ServiceThread::Clock::time_point> next;
  for (const auto& link : all()) {
    const auto wanted = link->run(reaper_, now);
    if (wanted && (!next || *wanted < *next)) next = wanted;
    // Its idle mappings keep memory of the dead; so do the timelines of dead forwarders.
    if (!link->usable() || link->has_finished()) unmapper_.nudge();
  }
  return next;
}

std::shared_ptr<ProducerLink> Links::get(const ProducerAddress& address, const Decline& promised) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (left_) {
      lock.unlock();
      decline(address, promised);
      throw Error(ErrorCode::kNoChannel, "This process is ending; it receives no more.");
    }
    // The newest entry of a producer counts: earlier ones have lost their connection.
    const auto found = std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry& entry) {
      return entry.producer == address.incarnation;
    });
    if (found == entries_.rend()) break;
    if (found->link) {
      if (found->link->usable()) return found->link;
      if (found->link->producer_has_ended()) {
        throw Error(ErrorCode::kProducerExited, "The process that sent this has ended.",
                    "Keep the sender alive until its messages are opened.");
      }
      break;
    }
    // Whoever's message is among those that the attempt is made for has its outcome.
    const std::shared_ptr<Attempt> attempt = found->attempt;
    const bool takes_part = attempt->promised->add(promised);
    connected_.wait(lock, [&] { return attempt->over; });
    if (takes_part && attempt->failure) throw *attempt->failure;
    if (takes_part && attempt->promised->have_ended()) {
      throw Error(ErrorCode::kNoChannel,
                  "Another thread's attempt to connect to the sender came to nothing, and the "
                  "sender was told that this message will not be opened.");
    }
  }
  const auto attempt = std::make_shared<Attempt>(promised);
  entries_.push_back({address.incarnation, nullptr, attempt});
  lock.unlock();
  return connect(address, attempt);
}

// No link is made, which would call the device: the connection that is made for the message declines
// it as it ends.
void Links::decline(const ProducerAddress& address, const Decline& promised) const noexcept {
  try {
    (void)shake_hands(address, own_, kHandshakeDeadline,
                      std::make_shared<PromisedMessages>(promised));
  } catch (const std::exception&) {
    // There is no way to the sender, or it was told all the same.
  }
}

// However it ends, the attempt is over: those who wait for it have no deadline.
std::shared_ptr<ProducerLink> Links::connect(const ProducerAddress& address,
                                             const std::shared_ptr<Attempt>& attempt) {
  std::shared_ptr<ProducerLink> link;
  try {
    Handshake hands = shake_hands(address, own_, kHandshakeDeadline, attempt->promised);
    const std::shared_ptr<Kept> kept(new Kept, [this](Kept* last) { drop(last); });
    kept->link.emplace(device_, address, std::move(hands));
    link = {kept, &*kept->link};
  } catch (const Error& failure) {
    end(attempt, nullptr, &failure);
    throw;
  } catch (...) {  // memory is short, or the thread is cancelled: there may be no words for it
    end(attempt, nullptr, nullptr);
    throw;
  }
  end(attempt, link, nullptr);
  reaper_.ring();  // which watches it in its periodic
  return link;
}

// Everybody who waits for it goes on.
void Links::end(const std::shared_ptr<Attempt>& attempt, std::shared_ptr<ProducerLink> link,
                const Error* failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    attempt->over = true;
    if (failure != nullptr) attempt->failure = *failure;  // the text is shared, not copied
    const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& each) { return each.attempt == attempt; });
    if (link) {
      entry->link = std::move(link);
      entry->attempt.reset();
    } else {
      entries_.erase(entry);
    }
  }
  connected_.notify_all();
}

std::vector<std::shared_ptr<ProducerLink>> Links::all() {
  std::vector<std::shared_ptr<ProducerLink>> links;
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.link) links.push_back(entry.link);
  }
  return links;
}

bool Links::has_sent_on(const Incarnation& producer, std::uint32_t lease_number) {
  const std::lock_guard lock(mutex_);
  const std::pair lease(producer, lease_number);
  return std::find(sent_on_.begin(), sent_on_.end(), lease) != sent_on_.end() ||
         std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
           return entry.link && entry.link->has_sent_on() && entry.producer == producer &&
                  entry.link->lease_number() == lease_number;
         });
}

void Links::tell_context_lost() noexcept {
  try {
    for (const auto& link : all()) link->tell_context_lost();
  } catch (const std::exception&) {
    // No memory for the list: the loss is looked for again.
  }
}

void Links::tell_life_line() noexcept {
  try {
    const std::uint32_t flags = life_line::flags();
    for (const auto& link : all()) link->tell_life_line(flags);
  } catch (const std::exception&) {
    // No memory for the list: it is looked at again.
  }
}

bool Links::own_numbers_landed() {
  const auto links = all();
  return std::all_of(links.begin(), links.end(),
                     [](const auto& link) { return link->own_numbers_landed(); });
}

void Links::leave() noexcept {
  std::vector<std::shared_ptr<ProducerLink>> links;
  try {
    links = all();
  } catch (const std::exception&) {
    return;  // no memory: the leases end with the process
  }
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
  }
  for (const auto& link : links) link->leave();
}

bool Links::has_left() {
  const std::lock_guard lock(mutex_);
  return left_;
}

void Links::forget(std::shared_ptr<ProducerLink> link) {
  std::list<std::shared_ptr<ProducerLink>> one{link};
  {
    const std::lock_guard lock(mutex_);
    if (link->has_sent_on()) sent_on_.emplace_back(link->producer(), link->lease_number());
    std::erase_if(entries_, [&](const Entry& entry) { return entry.link == link; });
    forgotten_.splice(forgotten_.end(), one);
  }
  link.reset();
  reaper_.ring();
}

void Links::unwatch_forgotten() {
  std::list<std::shared_ptr<ProducerLink>> forgotten;
  {
    const std::lock_guard lock(mutex_);
    forgotten.swap(forgotten_);
  }
  if (forgotten.empty()) return;
  for (const auto& link : forgotten) link->unwatch(reaper_);
  {
    const std::lock_guard lock(mutex_);
    unwatched_.splice(unwatched_.end(), forgotten);
  }
  unmapper_.ring();
}

bool Links::drop_unwatched() noexcept {
  std::list<std::shared_ptr<ProducerLink>> unwatched;
  {
    const std::lock_guard lock(mutex_);
    unwatched.swap(unwatched_);
  }
  unwatched.clear();  // what nobody else has is dropped
  bool all = true;
  for (Kept* dropped = take_dropped(); dropped != nullptr;) {
    Kept* const one = std::exchange(dropped, dropped->next);
    if (one->link->settle()) {
      delete one;
      continue;
    }
    all = false;
    const std::lock_guard lock(mutex_);
    one->next = std::exchange(dropped_, one);
  }
  return all;
}

Links::Kept* Links::take_dropped() noexcept {
  const std::lock_guard lock(mutex_);
  return std::exchange(dropped_, nullptr);
}

// It ends on the unmapper: its tables are unregistered, which may wait, and this is any thread of the
// program.
void Links::drop(Kept* last) noexcept {
  if (fork_guard::is_forked_child()) return;  // it is the parent's
  if (!last->link) {                          // it came to nothing
    delete last;
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    last->next = dropped_;
    dropped_ = last;
    if (ended_) return;
  }
  unmapper_.ring();
}

Links::~Links() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  entries_.clear();
  forgotten_.clear();
  if (drop_unwatched()) return;
  for (Kept* dropped = take_dropped(); dropped != nullptr;) {
    delete std::exchange(dropped, dropped->next);
  }
}

}  // namespace limbo
