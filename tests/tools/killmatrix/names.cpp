#include "tests/tools/killmatrix/names.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "allocator/error.h"
#include "ipc/sharing.h"

namespace limbo::killmatrix {
namespace {

constexpr std::string_view kNames[] = {"weights", "biases", "cache"};
constexpr std::size_t kMostPublished = 2;
constexpr std::size_t kLastBytes = 4096;
// Whoever holds the names' lock may be stopped for a while.
constexpr int kTries = 5;

Bytes to_extra(const Letter& letter) {
  Bytes extra(sizeof(letter));
  std::memcpy(extra.data(), &letter, sizeof(letter));
  return extra;
}

Letter letter_of(const Bytes& descriptor) {
  const Bytes extra = process_sharing().peek_extra(descriptor);
  Letter letter;
  if (extra.size() != sizeof(letter)) throw std::runtime_error("what was published has no letter");
  std::memcpy(&letter, extra.data(), sizeof(letter));
  return letter;
}

std::string any_name(Random& random) {
  return std::string(kNames[random.below(std::size(kNames))]);
}

}  // namespace

std::optional<Mail> acquire_any(Diary& diary, Random& random) {
  const std::string name = any_name(random);
  Mail mail;
  try {
    mail.descriptor = process_sharing().acquire(name);
  } catch (const Error& failure) {
    switch (failure.code()) {
      case ErrorCode::kNoSuchName:
        return std::nullopt;
      case ErrorCode::kGone:
      case ErrorCode::kProducerExited:
      case ErrorCode::kNoChannel:
      case ErrorCode::kLedgerFull:
        diary.line("not acquired: %.90s", failure.what());
        return std::nullopt;
      default:
        throw;
    }
  }
  mail.letter = letter_of(mail.descriptor);
  diary.line("acquire %s, from %u", name.c_str(), mail.letter.from.slot);
  return mail;
}

void Publisher::publish(const void* data, std::size_t size_bytes, std::uint32_t canary) {
  if (names_.size() >= kMostPublished) (void)unpublish();
  const std::string name = any_name(random_);
  const Letter letter{.from = {diary_.slot(), diary_.incarnation()}, .canary = canary};
  ShareOptions options;
  options.current_stream = GpuWork::ref(kStream);
  options.time_limit = std::chrono::milliseconds(random_.between(0, 40));
  diary_.limit(canary);
  diary_.line("publish %p, canary %u, as %s", data, canary, name.c_str());
  try {
    process_sharing().publish(name, data, size_bytes, options, to_extra(letter));
  } catch (const Error& failure) {
    if (failure.code() != ErrorCode::kNameTaken && failure.code() != ErrorCode::kBusy) throw;
    diary_.line("not published: %.90s", failure.what());
    return;
  }
  names_.push_back(name);
}

bool Publisher::unpublish() {
  if (names_.empty()) return false;
  const std::size_t index = random_.below(names_.size());
  if (unpublish(names_[index])) names_.erase(names_.begin() + static_cast<std::ptrdiff_t>(index));
  return true;
}

bool Publisher::unpublish(const std::string& name) {
  diary_.line("unpublish %s", name.c_str());
  try {
    if (!process_sharing().unpublish(name)) {
      diary_.found(Harm::kName, "\"%s\", which is published here, could not be taken back",
                   name.c_str());
    }
  } catch (const Error& failure) {
    if (failure.code() != ErrorCode::kBusy) throw;
    return false;
  }
  return true;
}

void Publisher::check() {
  if (names_.empty()) return;
  const std::string& name = names_[random_.below(names_.size())];
  Bytes descriptor;
  try {
    descriptor = process_sharing().acquire(name);
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::kGone || failure.code() == ErrorCode::kLedgerFull) return;
    if (failure.code() != ErrorCode::kNoSuchName) throw;
    diary_.found(Harm::kName, "\"%s\", which is published here, is not found", name.c_str());
    return;
  }
  const Sender from = letter_of(descriptor).from;
  if (from.slot != diary_.slot() || from.incarnation != diary_.incarnation()) {
    diary_.found(Harm::kName, "\"%s\", which is published here, leads to process %u", name.c_str(),
                 from.slot);
    return;
  }
  process_sharing().withdraw(descriptor);
}

void Publisher::unpublish_all() {
  for (int tries = 0; tries < kTries && !names_.empty(); ++tries) {
    std::erase_if(names_, [&](const std::string& name) {
      try {
        return unpublish(name);
      } catch (const Error& failure) {
        diary_.line("not unpublished: %.90s", failure.what());
        return false;  // it is published still; a fail point fails once
      }
    });
  }
  for (const std::string& name : names_) {
    diary_.found(Harm::kOther, "\"%s\" cannot be taken back", name.c_str());
  }
  names_.clear();
}

void publish_every_name() {
  Allocator& allocator = process_allocator();
  void* data = allocator.allocate(kLastBytes, GpuWork::ref(Publisher::kStream));
  for (const std::string_view name : kNames) {
    process_sharing().publish(std::string(name), data, kLastBytes, {}, {});
    if (!process_sharing().unpublish(std::string(name))) throw std::runtime_error("not published");
  }
  allocator.free(data);
}

}  // namespace limbo::killmatrix
