// Names, and what other processes are asked: sharing.h's last part.
#include "allocator/error.h"
#include "ipc/ask.h"
#include "ipc/fork_guard.h"
#include "ipc/names.h"
#include "ipc/publications.h"
#include "ipc/sharing_service.h"

namespace limbo {

void SharingService::publish(const std::string& name, const void* data, std::size_t size_bytes,
                             const ShareOptions& options, ByteSpan extra) {
  fork_guard::begin_use();
  publications(true)->publish(name, data, size_bytes, options, extra);
}

bool SharingService::unpublish(const std::string& name) {
  fork_guard::begin_use();
  check_name(name);
  Publications* own = publications(false);
  return own != nullptr && own->unpublish(name);
}

Bytes SharingService::acquire(const std::string& name) {
  fork_guard::begin_use();
  const auto owner = look_up_name(name);
  if (!owner) {
    throw Error(ErrorCode::kNoSuchName, "Nobody publishes \"" + name + "\".",
                "Acquire it while its owner publishes it.");
  }
  // Its own answer comes from here: another thread of this process may be stuck behind a stream.
  if (owner->incarnation == incarnation()) return publications(true)->acquire(name);
  return ask_for(*owner, name);
}

std::vector<PublishedName> SharingService::names() {
  fork_guard::begin_use();
  return list_names();
}

std::vector<LendingProcess> SharingService::processes() {
  fork_guard::begin_use();
  return list_processes();
}

std::vector<Holder> SharingService::holders_of(const LendingProcess& process) {
  fork_guard::begin_use();
  return ask_who_holds(process);
}

std::vector<std::string> SharingService::published_by(const LendingProcess& process) {
  fork_guard::begin_use();
  return ask_what_is_published(process);
}

Reaped SharingService::reap_in(const LendingProcess& process, bool force) {
  fork_guard::begin_use();
  return ask_to_reap(process, force);
}

}  // namespace limbo
