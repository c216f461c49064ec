#include "tests/tools/killmatrix/reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tests/support/eventually.h"
#include "tests/tools/killmatrix/names.h"

namespace limbo::killmatrix {
namespace {

constexpr std::size_t kMostHeld = 12;
constexpr int kNoDevice = 999;
constexpr std::chrono::milliseconds kSentOnFor{600};
constexpr std::uint64_t kMustOpenFor_us = 150'000;
constexpr std::size_t kFlood = 320;  // more than wait on a stream, fewer than a row takes
// The shortest deadline of a channel, nearly: whoever is stopped, or has no turn, may miss it.
constexpr std::uint64_t kDeadline_us = 900'000;
// A driver meets the end of a process before that is known here.
constexpr std::chrono::milliseconds kUntilDeathIsSeen{2000};

bool ends(const Arena& arena, const Sender& sender) {
  if (sender.incarnation == 0) return false;
  const SlotPage& page = arena.slots[sender.slot];
  return page.ending.load() == sender.incarnation || page.incarnation.load() != sender.incarnation;
}

// Whether one of those ends by now whose work the contents come from: the block's owner, and who has
// sent it on.
bool a_sender_ends(const Arena& arena, const Letter& letter) {
  return ends(arena, letter.from) || ends(arena, letter.by) ||
         std::any_of(letter.before.begin(), letter.before.end(),
                     [&](const Sender& sender) { return ends(arena, sender); });
}

}  // namespace

bool is_planned(const Error& failure, const Diary& diary) {
  const std::string_view text = failure.what();
  if (text.find("was told to fail") == std::string_view::npos) return false;
  diary.arena().planned_errors.fetch_add(1);
  return true;
}

Reader::Reader(Diary& diary, Post& post, GpuWork& work, Random& random, std::uint32_t slots,
               bool captures)
    : diary_(diary),
      post_(post),
      work_(work),
      random_(random),
      slots_(slots),
      captures_(captures && work.is_simulated()) {}

bool Reader::act() {
  const std::uint32_t choice = random_.below(100);
  if (held_.size() < kMostHeld && (choice < 40 || held_.empty())) {
    return random_.one_in(16) ? acquire() : receive();
  }
  const std::size_t index = random_.below(held_.size());
  Held& held = held_[index];
  if (choice < 60) {
    check(held);
  } else if (choice < 72) {
    write(held, std::chrono::milliseconds(random_.one_in(3) ? random_.between(1, 4) : 0));
  } else if (choice < 80) {
    change_stream(held);
  } else if (choice < 88) {
    send_on(index);
  } else if (choice < 90) {
    withdraw();
  } else if (choice < 92 && captures_) {
    release_in_capture(index);
  } else if (choice < 94 && work_.is_simulated() && !held.block->same_process()) {
    release_behind_a_stream_that_went(index);
  } else {
    release(index);
  }
  return true;
}

std::optional<Mail> Reader::take() {
  std::optional<Mail> mail = post_.take(diary_.slot());
  if (mail && now_us() > mail->letter.must_open_until_us) mail->letter.must_open = 0;
  return mail;
}

bool Reader::receive() {
  std::optional<Mail> mail = take();
  if (!mail) return false;
  if (random_.one_in(16)) {
    receive_in_vain(*mail);
    return true;
  }
  if (mail->letter.exclusive == 0 && random_.one_in(150)) {
    flood(*mail);
    return true;
  }
  // The newest of those that must come is for the end.
  if (mail->letter.must_open != 0 && mail->letter.by.incarnation == 0 &&
      mail->letter.from.slot != diary_.slot()) {
    std::swap(mail, put_by_);
    if (!mail) return true;
  }
  open(*mail);
  return true;
}

bool Reader::acquire() {
  const std::optional<Mail> mail = acquire_any(diary_, random_);
  if (mail) open(*mail);
  return mail.has_value();
}

void Reader::open(const Mail& mail) {
  const StreamHandle stream = work_.stream(random_.below(GpuWork::kStreams));
  ReceiveOptions options;
  options.current_stream = [stream](int) { return stream; };
  diary_.line("receive from %u, canary %u", mail.letter.from.slot, mail.letter.canary);
  Held held;
  const std::uint64_t asked_us = now_us();
  try {
    held.block = process_sharing().receive(mail.descriptor, options).block;
  } catch (const Error& failure) {
    refused(mail.letter, asked_us, failure);
    return;
  }
  diary_.arena().receives.fetch_add(1);
  held.letter = mail.letter;
  held.expected = mail.letter.canary;
  held.last = stream;
  held_.push_back(std::move(held));
  diary_.line("received %p", held_.back().block->data());
  if (random_.one_in(2)) check(held_.back());
}

void Reader::receive_in_vain(const Mail& mail) {
  ReceiveOptions options;
  options.device = kNoDevice;
  diary_.line("receive in vain from %u, canary %u", mail.letter.from.slot, mail.letter.canary);
  const std::uint64_t asked_us = now_us();
  try {
    (void)process_sharing().receive(mail.descriptor, options);
    diary_.found(Harm::kOther, "received on device %d, which does not exist", kNoDevice);
  } catch (const Error& failure) {
    if (failure.code() != ErrorCode::kBadArgument) refused(mail.letter, asked_us, failure);
  }
}

void Reader::flood(const Mail& mail) {
  const StreamHandle stream = work_.stream(random_.below(GpuWork::kStreams));
  ReceiveOptions options;
  options.current_stream = [stream](int) { return stream; };
  diary_.line("flood from %u, canary %u", mail.letter.from.slot, mail.letter.canary);
  std::vector<std::unique_ptr<ReceivedBlock>> blocks;
  diary_.arena().slots[diary_.slot()].has_flooded.store(true);
  const std::uint64_t asked_us = now_us();
  try {
    while (blocks.size() < kFlood) {
      blocks.push_back(process_sharing().receive(mail.descriptor, options).block);
    }
  } catch (const Error& failure) {
    if (blocks.empty()) {
      refused(mail.letter, asked_us, failure);
    } else {
      diary_.line("flood of %zu: %.80s", blocks.size(), failure.what());
    }
  }
  work_.delay(stream, std::chrono::milliseconds(5));
}

// What a receiver may be told, and what it may not.
void Reader::refused(const Letter& letter, std::uint64_t asked_us, const Error& failure) {
  diary_.line("refused: %.100s", failure.what());
  if (is_planned(failure, diary_) || diary_.context_lost()) return;
  switch (failure.code()) {
    case ErrorCode::kGone:
    case ErrorCode::kWithdrawn:
    case ErrorCode::kExpired:
      if (letter.must_open != 0) {
        diary_.found(Harm::kOther,
                     "a message of process %u, incarnation %u, canary %u, that was "
                     "promised to it alone: %s",
                     letter.from.slot, letter.from.incarnation, letter.canary, failure.what());
      }
      break;
    case ErrorCode::kBadDescriptor:
      diary_.found(Harm::kEarly,
                   "an export of process %u, canary %u, was another one behind a "
                   "claim that stood: %s",
                   letter.from.slot, letter.canary, failure.what());
      break;
    default:
      if (may_be_refused(letter, asked_us, failure.code())) break;
      diary_.found(Harm::kOther,
                   "receiving from process %u, incarnation %u, canary %u, asked %llu ms ago: %s",
                   letter.from.slot, letter.from.incarnation, letter.canary,
                   static_cast<unsigned long long>((now_us() - asked_us) / 1000), failure.what());
  }
  diary_.arena().refusals.fetch_add(1);
}

// Whether such an error has a reason, of a message that nobody has ended. Who ends says so before: of the
// living nobody says that they have exited.
bool Reader::may_be_refused(const Letter& letter, std::uint64_t asked_us, ErrorCode code) const {
  const SlotPage& own = diary_.arena().slots[diary_.slot()];
  switch (code) {
    case ErrorCode::kNoChannel:
      return now_us() - asked_us >= kDeadline_us || own.may_fail.load() ||
             diary_.arena().slots[letter.from.slot].may_fail.load() ||
             a_sender_ends(diary_.arena(), letter);
    case ErrorCode::kLedgerFull:
      return own.has_flooded.load();
    case ErrorCode::kProducerExited:
      return a_sender_ends(diary_.arena(), letter);
    case ErrorCode::kDeviceError:
      return sender_ends_soon(letter);
    default:
      return false;
  }
}

bool Reader::sender_ends_soon(const Letter& letter) const {
  return testing::eventually([&] { return a_sender_ends(diary_.arena(), letter); },
                             kUntilDeathIsSeen);
}

void Reader::check(Held& held) {
  if (held.expected == 0) return;
  diary_.arena().checks.fetch_add(1);
  const auto foreign =
      work_.foreign_word(held.last, held.block->data(), held.block->size_bytes(), held.expected);
  if (!foreign) {
    held.verified = true;
    return;
  }
  if (diary_.context_lost()) return;  // what was queued is dropped
  if (!held.verified && a_sender_ends(diary_.arena(), held.letter)) {
    // It ended before it had written, and so its readers wait no longer.
    diary_.arena().orphans.fetch_add(1);
    held.expected = 0;
    return;
  }
  diary_.found(Harm::kEarly, "block %p, %zu bytes, from process %u, with canary %u, %s: %s",
               held.block->data(), held.block->size_bytes(), held.letter.from.slot, held.expected,
               held.verified ? "changed while it was held" : "is another one",
               describe_canary(diary_.arena(), *foreign).c_str());
  held.expected = 0;
}

// Only where everything that its owner wrote has arrived: what a dead one had queued may come later.
void Reader::write(Held& held, std::chrono::milliseconds duration) {
  if (held.letter.exclusive == 0 || held.block->same_process()) return;
  if (!held.verified) check(held);
  if (!held.verified || held.expected == 0) return;
  held.expected = diary_.new_canary(true);
  diary_.line("write %p, canary %u, for %lld ms", held.block->data(), held.expected,
              static_cast<long long>(duration.count()));
  if (duration.count() == 0) {
    if (random_.one_in(3)) work_.delay(held.last, std::chrono::milliseconds(2));
    work_.fill(held.last, held.block->data(), held.block->size_bytes(), held.expected);
  } else {
    held.repeats = true;
    work_.write_for(held.last, held.block->data(), held.block->size_bytes(), held.expected,
                    duration);
  }
}

bool Reader::write_long(std::chrono::milliseconds duration) {
  bool any = false;
  for (Held& held : held_) {
    if (held.letter.exclusive == 0 || held.block->same_process()) continue;
    write(held, duration);
    any |= held.expected != 0;
  }
  return any;
}

void Reader::change_stream(Held& held) {
  const StreamHandle next = work_.stream(random_.below(GpuWork::kStreams));
  diary_.line("record_stream %p", held.block->data());
  work_.order(held.last, next);
  held.block->record_stream(GpuWork::ref(next));
  held.last = next;
}

// Sends on what is held. What is exclusive is the next one's alone from then on.
void Reader::send_on(std::size_t index) {
  Held& held = held_[index];
  if (!held.verified && held.letter.before.back().incarnation != 0) check(held);
  if (held.expected == 0 || held.repeats) return;
  ShareOptions options;
  options.current_stream = GpuWork::ref(held.last);
  const bool limited = random_.one_in(4);
  if (limited) diary_.limit(held.expected);
  options.time_limit = limited ? std::chrono::milliseconds(random_.between(0, 15)) : kSentOnFor;
  Mail mail;
  try {
    mail.descriptor =
        process_sharing().share(held.block->data(), held.block->size_bytes(), options, {});
  } catch (const Error& failure) {
    diary_.line("not sent on: %.100s", failure.what());
    if (is_planned(failure, diary_)) return;
    switch (failure.code()) {
      case ErrorCode::kProducerExited:
      case ErrorCode::kNoChannel:
      case ErrorCode::kLedgerFull:
      case ErrorCode::kWithdrawn:
      case ErrorCode::kExpired:
        return;
      default:
        throw;
    }
  }
  diary_.arena().forwards.fetch_add(1);
  mail.letter = held.letter;
  mail.letter.canary = held.expected;
  if (held.verified) {
    mail.letter.before = {};
  } else {
    std::shift_right(mail.letter.before.begin(), mail.letter.before.end(), 1);
    mail.letter.before.front() = held.letter.by;
  }
  mail.letter.by = {diary_.slot(), diary_.incarnation()};
  const bool may_withdraw = random_.one_in(6);
  if (may_withdraw) sent_on_.push_back(mail.descriptor);
  // By any message that brought this memory: the limit of that one is kept.
  const bool is_limited = diary_.is_limited(held.letter.canary) || limited;
  if (is_limited) diary_.limit(held.expected);
  mail.letter.must_open = is_limited || may_withdraw ? 0U : 1U;
  mail.letter.must_open_until_us = now_us() + kMustOpenFor_us;
  const std::uint32_t to = pick_receiver(diary_.arena(), random_, slots_);
  diary_.line("send on %p, canary %u, to %u", held.block->data(), held.expected, to);
  (void)post_.send(to, mail);
  if (held.letter.exclusive != 0) {
    held.expected = 0;
    release(index);
  }
}

void Reader::withdraw() {
  if (sent_on_.empty()) return;
  diary_.line("withdraw what was sent on");
  const Bytes descriptor = std::move(sent_on_.back());
  sent_on_.pop_back();
  try {
    process_sharing().withdraw(descriptor);
  } catch (const Error& failure) {
    // Its owner cannot be told, or nothing is left of the connection by which it was sent on.
    diary_.line("not withdrawn: %.90s", failure.what());
    if (failure.code() != ErrorCode::kNoChannel && failure.code() != ErrorCode::kBadArgument) throw;
  }
}

void Reader::release(std::size_t index) {
  if (random_.one_in(2)) check(held_[index]);
  Held held = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  diary_.line("release %p", held.block->data());
  if (random_.one_in(2)) held.block->release();
  if (random_.one_in(20)) held.block->release();  // once more: nothing happens
}

// Its release waits until the graph is gone.
void Reader::release_in_capture(std::size_t index) {
  Held held = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  diary_.line("release %p in a capture", held.block->data());
  if (held.last == nullptr) {  // the default stream cannot be captured
    held.last = work_.stream(1);
    work_.order(nullptr, held.last);
    held.block->record_stream(GpuWork::ref(held.last));
  }
  work_.capture(held.last, static_cast<int>(random_.below(3)), [&] { held.block->release(); });
}

// Its release waits until the device is idle. (A block of one's own waits for the stream itself.)
void Reader::release_behind_a_stream_that_went(std::size_t index) {
  Held held = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  diary_.line("release %p behind a stream that went", held.block->data());
  const StreamHandle stream = work_.new_stream();
  work_.order(held.last, stream);
  held.block->record_stream(GpuWork::ref(stream));
  work_.destroy_stream(stream);
  held.block->release();
}

void Reader::release_all() {
  for (Held& held : held_) check(held);
  diary_.line("release all, %zu", held_.size());
  held_.clear();
  while (const std::optional<Mail> mail = take()) {
    if (mail->letter.by.incarnation == 0) continue;
    const std::uint64_t asked_us = now_us();
    try {
      (void)process_sharing().receive(mail->descriptor, {});
    } catch (const Error& failure) {
      refused(mail->letter, asked_us, failure);
    }
  }
  if (put_by_) receive_in_vain(*put_by_);
  put_by_.reset();
}

}  // namespace limbo::killmatrix
