#include "tests/processes/peer_graphs.h"

#include <stdexcept>
#include <thread>

#include "allocator/device/sim_device.h"
#include "allocator/error.h"
#include "ipc/sharing.h"
#include "tests/support/eventually.h"

namespace limbo::testing {
namespace {

std::uint64_t calls_of(const std::string& name) {
  SimDevice& device = as_sim(process_allocator().device());
  for (std::size_t kind = 0; kind < kCallKinds; ++kind) {
    const auto call = static_cast<CallKind>(kind);
    if (call_kind_name(call) == name) return device.calls(call);
  }
  throw std::invalid_argument("no call " + name);
}

std::uint64_t mapped_by_others() {
  std::uint64_t pieces = 0;
  for (const Holder& holder : process_sharing().holders()) pieces += holder.mapped_pieces;
  return pieces;
}

}  // namespace

void PeerGraphs::prepare_to_lose(int device) {
  if (!kernels_) kernels_ = make_test_kernels(process_allocator().device());
  if (prepared_.insert(device).second) kernels_->prepare(device);
}

// By an access to what is not mapped.
bool PeerGraphs::lose_context(StreamRef stream) {
  Device& device = process_allocator().device();
  prepare_to_lose(stream.device);
  try {
    kernels_->write_for(stream, reinterpret_cast<void*>(0x1000), 1, 16, {});
  } catch (const Error&) {
    // The simulated device refuses it at once.
  }
  return eventually([&] { return device.is_lost(stream.device); });
}

void PeerGraphs::begin_during(const std::string& kind, const std::function<void()>& cause,
                              StreamRef stream) {
  const std::uint64_t before = calls_of(kind);
  cause();
  while (calls_of(kind) == before) std::this_thread::yield();
  const BeginningCapture beginning(stream);
  graphs().begin(stream, false);
}

TestGraphs& PeerGraphs::graphs() {
  if (!graphs_) graphs_ = make_test_graphs(process_allocator().device());
  return *graphs_;
}

std::optional<std::string> PeerGraphs::run(const std::string& command, std::istringstream& words,
                                           StreamRef stream) {
  std::string word;
  words >> word;
  if (command == "begin_capture") {
    graphs().begin(stream, word == "global");
  } else if (command == "announce_capture") {
    announced_.emplace(stream);
  } else if (command == "withdraw_capture") {
    announced_.reset();
  } else if (command == "end_capture") {
    captured_[word] = graphs().end(stream);
  } else if (command == "launch_graph") {
    captured_.at(word)->launch(stream);
  } else if (command == "destroy_graph") {
    captured_.erase(word);
  } else if (command == "hold_stream") {
    static_cast<void>(as_sim(process_allocator().device()).hold_stream(stream));
  } else if (command == "prepare_to_lose") {
    prepare_to_lose(std::stoi(word));
  } else if (command == "lose_context") {
    // On the stream, or on another device's default stream.
    return lose_context(word.empty() ? stream : StreamRef{std::stoi(word), nullptr}) ? "1" : "0";
  } else if (command == "synchronize_stream") {
    process_allocator().device().synchronize_stream(stream);
  } else if (command == "keep_for_graph") {
    return process_sharing().keep_for_graph(stream) ? "1" : "0";
  } else if (command == "calls") {
    return std::to_string(calls_of(word));
  } else if (command == "mapped_by_others") {
    return std::to_string(mapped_by_others());
  } else {
    return std::nullopt;
  }
  return std::string();
}

}  // namespace limbo::testing
