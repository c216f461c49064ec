#include "ipc/names.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "allocator/error.h"
#include "ipc/channel.h"
#include "ipc/channel_socket.h"
#include "ipc/directory_entries.h"
#include "ipc/incarnation.h"
#include "ipc/protocol/names.h"

namespace limbo {
namespace {

constexpr std::chrono::milliseconds kLockWithin{2000};
constexpr const char* kFolder = "names";
constexpr const char* kLockFile = ".lock";
constexpr const char* kNewSuffix = ".new";
constexpr std::string_view kUp = "../";

[[noreturn]] void fail(const RuntimeDirectory& directory, const std::string& what) {
  const int cause = errno;
  throw Error(ErrorCode::kNoChannel,
              "The names in " + directory.path() + "/" + kFolder + " cannot be used: " + what +
                  ": " + std::strerror(cause) + ".",
              "Set LIMBO_RUNTIME_DIR to a directory that only this user can enter.");
}

[[noreturn]] void throw_busy(const RuntimeDirectory& directory) {
  throw Error(ErrorCode::kBusy,
              "The names in " + directory.path() + " are locked by another process or thread for " +
                  std::to_string(kLockWithin.count()) + " ms.",
              "Try again; a stopped process may hold the lock.");
}

// Its owner's alone, and no link to elsewhere.
OwnedFd open_folder(const RuntimeDirectory& directory) {
  return OwnedFd(
      ::openat(directory.fd(), kFolder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// What the link NAME says; empty: there is none. No link at all: "?".
std::string read_link(int folder, const std::string& name) {
  std::array<char, 512> text{};
  const ssize_t length = ::readlinkat(folder, name.c_str(), text.data(), text.size());
  if (length >= 0) return {text.data(), static_cast<std::size_t>(length)};
  return errno == ENOENT ? "" : "?";
}

// The socket that a link leads to, in the runtime directory; nothing where it is none of Limbo's.
std::optional<std::string> socket_of(const std::string& link) {
  if (!link.starts_with(kUp)) return std::nullopt;
  std::string socket = link.substr(kUp.size());
  if (!producer_of_socket(socket)) return std::nullopt;
  return socket;
}

// Nothing: the link is dead.
std::optional<LendingProcess> living(const RuntimeDirectory& directory, int folder,
                                     const std::string& name) {
  const auto socket = socket_of(read_link(folder, name));
  if (!socket) return std::nullopt;
  const auto pid = listener_pid(directory, *socket);
  if (!pid) return std::nullopt;
  return LendingProcess{*producer_of_socket(*socket), directory.path(), *pid};
}

std::string who(bool self, pid_t pid) {
  if (self) return "this process itself";
  return pid != 0 ? "process " + std::to_string(pid) : "somebody who cannot be told";
}

std::vector<std::string> names_in(const OwnedFd& folder) {
  std::vector<std::string> names;
  for_each_entry(folder.get(), [&](std::string entry) {
    if (!entry.starts_with('.')) names.push_back(std::move(entry));
  });
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

void check_name(std::string_view name) {
  std::string wrong;
  if (name.empty()) wrong = "is empty";
  if (name.size() > kMaxNameBytes) wrong = "has " + std::to_string(name.size()) + " bytes";
  if (name.starts_with('.')) wrong = "begins with a dot";
  if (name.find('/') != std::string_view::npos) wrong = "has a slash in it";
  if (name.find('\0') != std::string_view::npos) wrong = "has a zero byte in it";
  if (wrong.empty()) return;
  throw Error(ErrorCode::kBadArgument,
              "The name \"" + std::string(name.substr(0, kMaxNameBytes)) + "\" " + wrong + ".",
              "A name has 1 to " + std::to_string(kMaxNameBytes) +
                  " bytes, no '/', and no '.' at its beginning.");
}

// One name of the folder, as protocol/names.h handles it. An exception on the way lets the locks go.
class OwnNames::Files {
 public:
  using Link = std::string;

  Files(OwnNames& names, const std::string& name) : names_(names), name_(name) {}
  ~Files() { unlock(); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  // Both locks.
  [[nodiscard]] bool lock() {
    const auto until = std::chrono::steady_clock::now() + kLockWithin;
    while (!try_lock()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  void unlock() noexcept {
    if (!locked_) return;
    locked_ = false;
    (void)set(F_UNLCK);
    names_.mutex_.unlock();
  }

  [[nodiscard]] Link read() const { return read_link(folder(), name_); }
  [[nodiscard]] static bool is_there(const Link& link) { return !link.empty(); }
  [[nodiscard]] bool is_own(const Link& link) const { return link == names_.target(); }
  [[nodiscard]] bool has_living_owner(const Link& link) {
    const auto socket = socket_of(link);
    const auto pid = socket ? listener_pid(names_.directory_, *socket) : std::optional<pid_t>(0);
    if (pid) owner_ = who(is_own(link), *pid);
    return pid.has_value();
  }
  // As it was found to live.
  [[nodiscard]] const std::string& owner() const { return owner_; }

  void make_new() const {
    const std::string target = names_.target();
    const std::string link = new_name();
    if (::symlinkat(target.c_str(), folder(), link.c_str()) != 0 && errno != EEXIST) {
      fail(names_.directory_, "symlink");
    }
  }
  template <class Visit>
  void for_each_new(Visit&& visit) const {
    std::vector<std::string> links;
    for_each_entry(folder(), [&](std::string entry) {
      if (entry.starts_with('.') && entry.ends_with(kNewSuffix)) links.push_back(std::move(entry));
    });
    for (const std::string& link : links) visit(link);
  }
  [[nodiscard]] Link read_new(const std::string& link) const { return read_link(folder(), link); }
  // Where it fails, the next one tries again.
  void remove_new(const std::string& link) const { ::unlinkat(folder(), link.c_str(), 0); }
  void put_in_place() const {
    const std::string link = new_name();
    if (::renameat(folder(), link.c_str(), folder(), name_.c_str()) == 0) return;
    const int cause = errno;
    ::unlinkat(folder(), link.c_str(), 0);
    errno = cause;
    fail(names_.directory_, "rename");
  }
  void remove() const {
    if (::unlinkat(folder(), name_.c_str(), 0) != 0) fail(names_.directory_, "unlink");
  }

 private:
  [[nodiscard]] int folder() const { return names_.names_.get(); }
  [[nodiscard]] std::string new_name() const { return "." + to_string(names_.own_) + kNewSuffix; }
  [[nodiscard]] bool set(short kind) const {
    struct flock whole {};
    whole.l_type = kind;
    whole.l_whence = SEEK_SET;
    return ::fcntl(names_.lock_.get(), F_SETLK, &whole) == 0;
  }
  [[nodiscard]] bool try_lock() {
    if (!names_.mutex_.try_lock()) return false;
    locked_ = set(F_WRLCK);
    const int cause = errno;
    if (!locked_) {
      names_.mutex_.unlock();
      errno = cause;
      if (cause != EAGAIN && cause != EACCES && cause != EINTR) fail(names_.directory_, "lock");
    }
    return locked_;
  }

  OwnNames& names_;
  const std::string& name_;
  std::string owner_;
  bool locked_ = false;
};

OwnNames::OwnNames(const RuntimeDirectory& directory, const Incarnation& own)
    : directory_(directory), own_(own) {
  if (::mkdirat(directory.fd(), kFolder, 0700) != 0 && errno != EEXIST) fail(directory, "mkdir");
  names_ = open_folder(directory);
  if (!names_.valid()) fail(directory, "open");
  lock_ =
      OwnedFd(::openat(names_.get(), kLockFile, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock_.valid()) fail(directory, "open of its lock");
}

std::string OwnNames::target() const {
  return std::string(kUp) + channel_socket_name(own_);
}

void OwnNames::add(const std::string& name) {
  check_name(name);
  Files files(*this, name);
  switch (protocol::take_name(files)) {
    case protocol::NameVerdict::kDone:
      return;
    case protocol::NameVerdict::kBusy:
      throw_busy(directory_);
    case protocol::NameVerdict::kTaken:
      throw Error(ErrorCode::kNameTaken,
                  "The name \"" + name + "\" is taken by " + files.owner() + " (" +
                      directory_.path() + "/" + kFolder + ").",
                  "Choose another name, or let its owner unpublish it.");
  }
}

void OwnNames::remove(const std::string& name) {
  check_name(name);
  Files files(*this, name);
  if (protocol::give_up_name(files) == protocol::NameVerdict::kBusy) throw_busy(directory_);
}

std::optional<LendingProcess> look_up_name(const std::string& name) {
  check_name(name);
  for (const RuntimeDirectory& directory : RuntimeDirectory::all_existing()) {
    const OwnedFd folder = open_folder(directory);
    if (!folder.valid()) continue;
    if (auto found = living(directory, folder.get(), name)) return found;
  }
  return std::nullopt;
}

std::vector<PublishedName> list_names() {
  std::vector<PublishedName> found;
  std::set<std::string> seen;
  for (const RuntimeDirectory& directory : RuntimeDirectory::all_existing()) {
    const OwnedFd folder = open_folder(directory);
    if (!folder.valid()) continue;
    for (const std::string& name : names_in(folder)) {
      if (seen.contains(name)) continue;
      auto owner = living(directory, folder.get(), name);
      if (!owner) continue;
      seen.insert(name);
      found.push_back({name, *std::move(owner)});
    }
  }
  return found;
}

}  // namespace limbo
