#include "ipc/lease_watch.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <utility>

#include "ipc/life_line.h"
#include "ipc/protocol/mistakes.h"

namespace limbo {

bool DeathSigns::needs_grace() const noexcept {
  constexpr std::uint32_t kProvesLess = life_line::kLate | life_line::kPerhapsMps;
  return !process_ended || (life_line_flags & kProvesLess) != 0;
}

bool DeathSigns::never_quiet() const noexcept {
  return (life_line_flags & life_line::kLateWithChildren) != 0;
}

std::optional<DeathSigns::Clock::time_point> DeathSigns::quiet_at(Clock::time_point now) {
  const bool waits = !protocol::makes(protocol::Mistake::kNoLifeline);
  if (!gone() || (!life_line_closed && waits) || never_quiet()) return std::nullopt;
  if (!grace_from) grace_from = now;
  return needs_grace() ? *grace_from + kQuietGrace : *grace_from;
}

std::string DeathSigns::why() const {
  std::string ended =
      process_ended ? "the process has ended" : "the process has replaced itself by exec";
  if (never_quiet()) {
    return ended +
           "; its GPU work may go on in a child that it had before Limbo was loaded, so it "
           "counts as a holder until the owner ends";
  }
  if (!life_line_closed) return ended + "; its GPU work, or a fork child of it, still runs";
  if (needs_grace()) return ended + "; its GPU work is given 2 s to stop";
  return ended;
}

PeerWatch::PeerWatch(ServiceThread& reaper, OwnedFd pidfd, OwnedFd life_line, std::uint32_t flags,
                     std::function<void()> changed)
    : reaper_(reaper),
      pidfd_(std::move(pidfd)),
      life_line_(std::move(life_line)),
      changed_(std::move(changed)) {
  signs_.life_line_flags = flags;
  watch_rest();
}

PeerWatch::~PeerWatch() {
  if (pidfd_.valid()) reaper_.unwatch(pidfd_.get());
  if (life_line_.valid()) reaper_.unwatch(life_line_.get());
}

void PeerWatch::watch_rest() noexcept {
  try {
    if (!signs_.process_ended && !pidfd_watched_ && pidfd_.valid()) {
      reaper_.watch(pidfd_.get(), [this] { see_pidfd(); });
      pidfd_watched_ = true;
    }
    if (!signs_.life_line_closed && !life_line_watched_ && life_line_.valid()) {
      reaper_.watch_hangup(life_line_.get(), [this] { see_life_line(); });
      life_line_watched_ = true;
    }
  } catch (const std::exception&) {
    // No memory, or too many watches: again later.
  }
}

bool PeerWatch::stands() const noexcept {
  return (pidfd_watched_ || signs_.process_ended || !pidfd_.valid()) &&
         (life_line_watched_ || signs_.life_line_closed || !life_line_.valid());
}

bool PeerWatch::try_again() noexcept {
  if (stands()) return false;
  watch_rest();
  const DeathSigns before = signs_;
  if (!pidfd_watched_ && pidfd_.valid()) signs_.process_ended |= is_readable(pidfd_.get());
  if (!life_line_watched_ && life_line_.valid()) {
    signs_.life_line_closed |= is_life_line_closed(life_line_.get());
  }
  return signs_.process_ended != before.process_ended ||
         signs_.life_line_closed != before.life_line_closed;
}

void PeerWatch::look_now() {
  const auto changed = changed_;  // may destroy this watch
  if (!signs_.process_ended && pidfd_.valid() && is_readable(pidfd_.get())) {
    reaper_.unwatch(pidfd_.get());
    signs_.process_ended = true;
  }
  if (!signs_.life_line_closed && life_line_.valid() && is_life_line_closed(life_line_.get())) {
    reaper_.unwatch(life_line_.get());
    signs_.life_line_closed = true;
  }
  changed();
}

void PeerWatch::see_pidfd() {
  if (!is_readable(pidfd_.get())) return;  // told of a descriptor that had this number before
  reaper_.unwatch(pidfd_.get());
  signs_.process_ended = true;
  const auto changed = changed_;  // may destroy this watch
  changed();
}

void PeerWatch::see_life_line() {
  if (!is_life_line_closed(life_line_.get())) return;
  reaper_.unwatch(life_line_.get());
  signs_.life_line_closed = true;
  const auto changed = changed_;
  changed();
}

bool is_life_line(int fd) noexcept {
  struct stat facts {};
  struct statfs system {};
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & (O_ACCMODE | O_PATH)) == O_RDONLY && ::fstat(fd, &facts) == 0 &&
         S_ISFIFO(facts.st_mode) && ::fstatfs(fd, &system) == 0 && system.f_type == PIPEFS_MAGIC;
}

// Nothing is read: what somebody has written says nothing, and a read could be made to wait.
bool is_life_line_closed(int far_end) noexcept {
  pollfd entry{far_end, 0, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & POLLHUP) != 0;
}

}  // namespace limbo
