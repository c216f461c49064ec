#include "ipc/publications.h"

#include <utility>

#include "allocator/error.h"
#include "ipc/questions.h"

namespace limbo {
namespace {

// What a descriptor has besides the extra part: its fields, a directory and a socket's name of
// usual lengths. Longer ones are refused when somebody acquires.
constexpr std::size_t kDescriptorWithoutExtra = 512;
constexpr std::size_t kMostPublishedExtra = kMaxAnsweredDescriptorBytes - kDescriptorWithoutExtra;

void check(const void* data, std::size_t size_bytes, const ShareOptions& options, ByteSpan extra) {
  if (data == nullptr || size_bytes == 0) {
    throw Error(ErrorCode::kBadArgument, "An empty range of memory cannot be published.");
  }
  if (options.consumers != 1) {
    throw Error(ErrorCode::kBadArgument, "consumers is " + std::to_string(options.consumers) + ".",
                "What is published is promised to one process at each acquire: use 1.");
  }
  if (extra.size() > kMostPublishedExtra) {
    throw Error(ErrorCode::kBadArgument,
                "The extra part has " + std::to_string(extra.size()) + " bytes.",
                "At most " + std::to_string(kMostPublishedExtra) + " are published with a name.");
  }
}

}  // namespace

Publications::Publications(Allocator& allocator, const Incarnation& own, Share share)
    : allocator_(allocator), own_(own), share_(std::move(share)) {}

Publications::~Publications() {
  end();
  for (const auto& [name, entry] : entries_) allocator_.unpin(entry.block);
}

OwnNames& Publications::names() {
  const std::lock_guard lock(mutex_);
  if (names_ == nullptr) {
    directory_ = std::make_unique<RuntimeDirectory>(RuntimeDirectory::open_own());
    names_ = std::make_unique<OwnNames>(*directory_, own_);
  }
  return *names_;
}

void Publications::publish(const std::string& name, const void* data, std::size_t size_bytes,
                           const ShareOptions& options, ByteSpan extra) {
  check_name(name);
  check(data, size_bytes, options, extra);
  // An unpublish in between would find the entry and no link yet.
  const std::lock_guard changing(changing_);
  OwnNames& links = names();
  const BlockView block = allocator_.pin(data);
  const auto inside = static_cast<std::size_t>(static_cast<const std::byte*>(data) -
                                               static_cast<const std::byte*>(block.data));
  bool listed = false;
  try {
    if (size_bytes > block.size_bytes - inside) {
      throw Error(ErrorCode::kBadArgument, "The range of " + std::to_string(size_bytes) +
                                               " bytes ends behind its block, which has " +
                                               std::to_string(block.size_bytes - inside) +
                                               " from there.");
    }
    {
      // Listed before the link can be found.
      const std::lock_guard lock(mutex_);
      Entry entry{block.block, data, size_bytes, options, Bytes(extra.begin(), extra.end())};
      listed = entries_.emplace(name, std::move(entry)).second;
    }
    if (!listed) {
      throw Error(ErrorCode::kNameTaken, "This process publishes \"" + name + "\" already.",
                  "Unpublish it first.");
    }
    links.add(name);
  } catch (...) {
    if (listed) {
      drop(name);
    } else {
      allocator_.unpin(block.block);
    }
    throw;
  }
}

bool Publications::unpublish(const std::string& name) {
  check_name(name);
  const std::lock_guard changing(changing_);
  OwnNames* links = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!entries_.contains(name)) return false;
    links = names_.get();
  }
  links->remove(name);
  drop(name);
  return true;
}

void Publications::drop(const std::string& name) {
  Entries::node_type dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped = entries_.extract(name);
  }
  if (dropped) allocator_.unpin(dropped.mapped().block);  // another thread may have been faster
}

Bytes Publications::acquire(const std::string& name) {
  Entry entry;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      throw Error(ErrorCode::kNoSuchName, "Nobody publishes \"" + name + "\".",
                  "Acquire it while its owner publishes it.");
    }
    entry = found->second;
    // A pin of our own, so that the memory stays this block's whoever unpublishes meanwhile.
    allocator_.pin_again(entry.block);
  }
  try {
    Bytes message = share_(entry.data, entry.size_bytes, entry.options, entry.extra);
    allocator_.unpin(entry.block);
    return message;
  } catch (const Error& failure) {
    allocator_.unpin(entry.block);
    if (failure.code() != ErrorCode::kNotLendable) throw;
    throw Error(ErrorCode::kGone, "The owner of \"" + name + "\" has freed its memory.",
                "Unpublish a name before its memory is freed.");
  }
}

std::vector<std::string> Publications::list() {
  std::vector<std::string> names;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

void Publications::end() noexcept {
  try {
    for (const std::string& name : list()) names_->remove(name);
  } catch (const std::exception&) {
    // Links of the dead are passed over.
  }
}

}  // namespace limbo
