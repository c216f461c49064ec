#include "tests/tools/killmatrix/lender.h"

#include <algorithm>
#include <string>

#include "allocator/error.h"

namespace limbo::killmatrix {
namespace {

constexpr std::size_t kMostBlocks = 24;
constexpr std::size_t kMostSent = 20'000;

std::size_t random_size(Random& random) {
  static constexpr std::size_t kSizes[] = {512, 2048, 2048, 4096, 4096, 16'384, 65'536};
  if (random.one_in(60)) return std::size_t{3} << 20;
  return kSizes[random.below(std::size(kSizes))];
}

}  // namespace

Lender::Lender(Diary& diary, Post& post, GpuWork& work, Random& random, std::uint32_t slots,
               const Plan& plan)
    : diary_(diary),
      post_(post),
      work_(work),
      random_(random),
      slots_(slots),
      sends_twice_(plan.sends_twice),
      slow_writes_one_in_(plan.slow_writes_one_in),
      slow_writes_ms_(plan.slow_writes_ms),
      publisher_(diary, random) {}

void Lender::act() {
  const std::uint32_t choice = random_.below(100);
  if (choice < 22) {
    allocate();
  } else if (choice < 25) {
    publish();
  } else if (choice < 65) {
    if (own_.size() < 3) allocate();
    send();
  } else if (choice < 74) {
    if (!own_.empty()) check(own_[random_.below(own_.size())]);
  } else if (choice < 86) {
    if (!own_.empty()) free(random_.below(own_.size()));
  } else if (choice < 90) {
    withdraw();
  } else {
    look();
  }
}

void Lender::allocate_on(StreamHandle home) {
  if (own_.size() >= kMostBlocks) free(random_.below(own_.size()));
  Own own;
  own.size_bytes = random_size(random_);
  own.home = own.last = home;
  own.canary = diary_.new_canary(false);
  Allocator& allocator = process_allocator();
  own.data = allocator.allocate(own.size_bytes, GpuWork::ref(own.home));
  own_.push_back(own);
  Own& kept = own_.back();
  if (random_.one_in(4)) {
    // Written by another stream than the one that it belongs to.
    kept.last = work_.stream(random_.below(GpuWork::kStreams));
    work_.order(kept.home, kept.last);
    if (kept.last != kept.home) (void)allocator.record_stream(kept.data, GpuWork::ref(kept.last));
  }
  if (random_.one_in(slow_writes_one_in_)) {
    work_.delay(kept.last, std::chrono::milliseconds(random_.between(1, slow_writes_ms_)));
  }
  work_.fill(kept.last, kept.data, kept.size_bytes, kept.canary);
  diary_.line("allocate %p, %zu bytes, canary %u", kept.data, kept.size_bytes, kept.canary);
}

std::uint32_t Lender::another_slot() {
  // Now and then oneself: a message opened where it was made.
  if (random_.one_in(12)) return diary_.slot();
  return pick_receiver(diary_.arena(), random_, slots_, diary_.slot());
}

void Lender::send() {
  const std::size_t index = random_.below(own_.size());
  Own& own = own_[index];
  // What is kept may be sent again; what is exclusive is the receiver's alone.
  const bool exclusive = !sends_twice_ && !own.sent && random_.one_in(2);
  const bool twice = !exclusive && (sends_twice_ || random_.one_in(3));
  const bool limited = random_.one_in(4);
  const bool may_withdraw = random_.one_in(4);
  ShareOptions options;
  options.current_stream = GpuWork::ref(own.last);
  if (random_.one_in(4)) {
    const StreamHandle sender = work_.stream(random_.below(GpuWork::kStreams));
    work_.order(own.last, sender);
    options.current_stream = GpuWork::ref(sender);
  }
  if (limited) {
    options.time_limit = std::chrono::milliseconds(random_.between(0, 15));
    diary_.limit(own.canary);
  }
  Mail mail;
  const bool two_promised = twice && !sends_twice_ && several_promises_ && random_.one_in(2);
  if (two_promised) options.consumers = 2;
  try {
    mail.descriptor = process_sharing().share(own.data, own.size_bytes, options, {});
  } catch (const Error& failure) {
    if (failure.code() != ErrorCode::kNotAvailableYet || !two_promised) throw;
    several_promises_ = false;
    return;
  }
  own.sent = true;
  diary_.arena().sends.fetch_add(1);
  if (sent_.size() < kMostSent) sent_.push_back(mail.descriptor);
  if (may_withdraw) withdrawable_.push_back(mail.descriptor);
  mail.letter = {.from = {diary_.slot(), diary_.incarnation()},
                 .canary = own.canary,
                 .exclusive = exclusive ? 1U : 0U,
                 .must_open = !limited && !may_withdraw && !twice ? 1U : 0U};
  const std::uint32_t to = another_slot();
  diary_.line("send %p, canary %u, to %u%s%s%s", own.data, own.canary, to,
              exclusive ? ", exclusive" : "", limited ? ", limited" : "", twice ? ", twice" : "");
  (void)post_.send(to, mail);
  if (twice) (void)post_.send(another_slot(), mail);
  if (exclusive) {
    process_allocator().free(own.data);
    own_.erase(own_.begin() + static_cast<std::ptrdiff_t>(index));
  } else if (random_.one_in(3)) {
    free(index);
  }
}

// It is published until its name is wanted for something else, whether it is freed meanwhile or not.
void Lender::publish() {
  const auto is_behind_stream = [](const Own& own) {
    return own.home == Publisher::kStream && own.last == Publisher::kStream;
  };
  auto found = std::find_if(own_.begin(), own_.end(), is_behind_stream);
  if (found == own_.end()) {
    allocate_on(Publisher::kStream);
    found = own_.end() - 1;
    if (!is_behind_stream(*found)) work_.order(found->last, Publisher::kStream);
  }
  found->sent = true;
  publisher_.publish(found->data, found->size_bytes, found->canary);
}

void Lender::check(Own& own) {
  diary_.arena().checks.fetch_add(1);
  const auto foreign = work_.foreign_word(own.last, own.data, own.size_bytes, own.canary);
  if (!foreign) return;
  diary_.found(Harm::kEarly,
               "its own block %p, %zu bytes, with canary %u, was written by others: %s", own.data,
               own.size_bytes, own.canary, describe_canary(diary_.arena(), *foreign).c_str());
  own.canary = *foreign;  // told once
}

void Lender::free(std::size_t index) {
  Own own = own_[index];
  if (random_.one_in(3)) check(own_[index]);
  own_.erase(own_.begin() + static_cast<std::ptrdiff_t>(index));
  diary_.line("free %p, canary %u", own.data, own.canary);
  process_allocator().free(own.data);
}

void Lender::withdraw() {
  if (withdrawable_.empty()) return;
  const std::size_t index = random_.below(withdrawable_.size());
  diary_.line("withdraw");
  process_sharing().withdraw(withdrawable_[index]);
  withdrawable_.erase(withdrawable_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Lender::look() {
  switch (random_.below(8)) {
    case 0:
    case 1:
      diary_.line("empty_cache");
      process_allocator().empty_cache();
      break;
    case 2:
      (void)process_sharing().holders();
      break;
    case 3:
      (void)process_sharing().drain(std::chrono::milliseconds(1));
      break;
    case 4:
      (void)process_sharing().reap(false);
      break;
    case 5:
      (void)publisher_.unpublish();
      break;
    case 6:
      publisher_.check();
      break;
    default:
      (void)process_sharing().collect();
  }
}

void Lender::free_all() {
  publisher_.unpublish_all();
  while (!own_.empty()) {
    check(own_.back());
    const void* data = own_.back().data;
    own_.pop_back();
    process_allocator().free(const_cast<void*>(data));
  }
}

void Lender::withdraw_all() {
  for (const Bytes& descriptor : sent_) process_sharing().withdraw(descriptor);
  sent_.clear();
  withdrawable_.clear();
}

}  // namespace limbo::killmatrix
