#include "tests/tools/demo/peer.h"

#include <sstream>
#include <stdexcept>

namespace limbo::demo {
namespace {

constexpr std::uint64_t kMostUnread = 8;  // messages that a consumer may be behind

}  // namespace

Peer::Peer(std::string name) : name_(std::move(name)), child_("demo_consumer", {name_}) {
  child_.expect("ready");
  listener_ = std::thread([this] { listen(); });
}

Peer::~Peer() {
  if (!listener_.joinable()) return;
  // Only after a failure elsewhere: the pipe's end ends the listener.
  child_.kill_unreaped();
  listener_.join();
}

bool Peer::has_room() {
  const std::lock_guard lock(mutex_);
  return accepting_ && sent_ - received_ < kMostUnread;
}

bool Peer::send(ByteSpan descriptor) {
  const std::lock_guard lock(mutex_);
  if (!accepting_) return false;
  child_.send("take " + testing::to_hex(descriptor));
  ++sent_;
  return true;
}

void Peer::listen() {
  try {
    for (;;) {
      std::istringstream words(child_.receive());
      std::string verb;
      std::string verdict;
      std::uint64_t number = 0;
      std::uint64_t size_bytes = 0;
      words >> verb;
      if (verb == "holding" || verb == "empty") return;
      words >> number >> size_bytes >> verdict;
      if (verdict != "ok") ++corrupted_;
      if (verb == "received") ++received_;
      if (verb == "released") ++released_;
    }
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

void Peer::join_listener() {
  listener_.join();
  if (!failure_.empty()) throw std::runtime_error(name_ + ": " + failure_);
}

void Peer::hold() {
  {
    const std::lock_guard lock(mutex_);
    accepting_ = false;
    child_.send("hold");
  }
  join_listener();
}

void Peer::kill() {
  child_.kill_unreaped();
}

void Peer::give_back() {
  {
    const std::lock_guard lock(mutex_);
    accepting_ = false;
    child_.send("give back");
  }
  join_listener();
}

void Peer::end() {
  child_.close_input();
  child_.finish();
}

}  // namespace limbo::demo
