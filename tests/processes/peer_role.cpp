// The child's side of peer.h.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "allocator/device/sim_device.h"
#include "allocator/error.h"
#include "ipc/sharing.h"
#include "ipc/sharing_service.h"
#include "tests/processes/peer_forks.h"
#include "tests/processes/peer_graphs.h"
#include "tests/processes/peer_many.h"
#include "tests/processes/peer_process.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/peer_balance.h"
#include "tests/support/test_kernels.h"

namespace limbo::testing {
namespace {

constexpr int kDevice = 0;

class PeerRole {
 public:
  // The answer's words behind "ok".
  std::string run(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    const auto found = commands_.find(command);
    if (found != commands_.end()) return found->second(words);
    const auto run_one = [this](const std::string& one) { return run(one); };
    if (auto answer = run_many(command, words, run_one)) return *answer;
    if (auto answer = run_for_process(command, words)) return *answer;
    if (auto answer = graphs_.run(command, words, stream())) return *answer;
    throw std::invalid_argument("no command " + command);
  }

 private:
  using Words = std::istringstream;

  struct Named {
    void* data = nullptr;
    std::size_t size_bytes = 0;
    int device = kDevice;
    std::unique_ptr<ReceivedBlock> received;
  };

  template <typename Value = std::string>
  static Value next(Words& words) {
    Value value{};
    if (!(words >> value)) throw std::invalid_argument("a word is missing");
    return value;
  }
  Named& block(Words& words) { return blocks_.at(next(words)); }
  static Device& device() { return process_allocator().device(); }
  StreamRef stream(int on = kDevice) const { return {on, current_}; }
  TestKernels& kernels() {
    if (!kernels_) {
      kernels_ = make_test_kernels(device());
      kernels_->prepare(kDevice);
    }
    return *kernels_;
  }

  std::string allocate(Words& words) {
    const auto name = next(words);
    balance_.begin_lending();
    Named made;
    made.size_bytes = next<std::size_t>(words);
    made.data = process_allocator().allocate(made.size_bytes, stream());
    const auto value = next<std::uint32_t>(words);
    device().fill(stream(), made.data, value, made.size_bytes / 4);
    blocks_[name] = std::move(made);
    return {};
  }
  std::string free(Words& words) {
    const auto name = next(words);
    process_allocator().free(blocks_.at(name).data);
    blocks_.erase(name);
    return {};
  }
  std::string fill(Words& words) {
    Named& target = block(words);
    device().fill(stream(target.device), target.data, next<std::uint32_t>(words),
                  target.size_bytes / 4);
    return {};
  }
  std::string holds(Words& words) {
    Named& target = block(words);
    const auto value = next<std::uint32_t>(words);
    std::vector<std::uint32_t> host(target.size_bytes / 4);
    device().copy_to_host(stream(target.device), host.data(), target.data, host.size() * 4);
    for (const std::uint32_t word : host) {
      if (word != value) return "0";
    }
    return "1";
  }
  std::string write_for(Words& words) {
    Named& target = block(words);
    const auto value = next<std::uint32_t>(words);
    kernels().write_for(stream(target.device), target.data, value, target.size_bytes / 4,
                        std::chrono::milliseconds(next<std::int64_t>(words)));
    return {};
  }
  std::string use_stream(Words& words) {
    std::string name;
    words >> name;
    current_ = named_stream(name);
    return {};
  }
  StreamHandle named_stream(const std::string& name) {
    if (name.empty() || name == "default") return nullptr;
    if (name == "per_thread") return reinterpret_cast<StreamHandle>(2);  // cudaStreamPerThread
    auto& handle = streams_[name];
    if (handle == nullptr) handle = device().create_stream(kDevice);
    return handle;
  }
  std::string destroy_stream(Words& words) {
    const auto name = next(words);
    device().destroy_stream({kDevice, streams_.at(name)});
    streams_.erase(name);
    return {};
  }
  // Drops the block on another thread, and goes on. Joined by the next one, or by "join".
  std::string drop_aside(Words& words) {
    aside_.drop(std::move(blocks_.extract(next(words)).mapped().received));
    return {};
  }
  // KIND COMMAND: captures while another thread makes that call, which the command leads to.
  std::string begin_capture_during(Words& words) {
    const auto kind = next(words);
    std::string cause;
    std::getline(words, cause);
    graphs_.begin_during(
        kind, [&] { run(cause); }, stream());
    return {};
  }
  // THREADS PREFIX COUNT: the threads drop PREFIX0, PREFIX1, ... in turn.
  std::string drop_by_threads(Words& words) {
    const auto count = next<std::size_t>(words);
    const auto prefix = next(words);
    std::vector<std::unique_ptr<ReceivedBlock>> held(next<std::size_t>(words));
    for (std::size_t index = 0; index < held.size(); ++index) {
      held[index] = std::move(blocks_.extract(prefix + std::to_string(index)).mapped().received);
    }
    drop_by_many_threads(count, std::move(held));
    return {};
  }
  std::string record_stream(Words& words) {
    Named& target = block(words);
    const StreamHandle handle = named_stream(next(words));
    int on = target.device;
    words >> on;
    target.received->record_stream({on, handle});
    return {};
  }
  std::string share(Words& words) {
    Named& target = block(words);
    const auto limit = next<std::int64_t>(words);
    ShareOptions options;
    options.current_stream = stream();
    if (limit >= 0) options.time_limit = std::chrono::milliseconds(limit);
    if (int consumers = 0; words >> consumers) options.consumers = consumers;
    const std::string extra = "extra";
    const Bytes message = process_sharing().share(target.data, target.size_bytes, options,
                                                  std::as_bytes(std::span(extra)));
    sent_.push_back(message);
    return to_hex(message);
  }
  std::string receive(Words& words) {
    const auto name = next(words);
    const auto bytes = from_hex(next(words));
    const int on = next<int>(words);
    ReceiveOptions options;
    if (on >= 0) options.device = on;
    options.current_stream = [this](int) { return current_; };
    Received got = process_sharing().receive(bytes, options);
    if (got.extra.size() != 5) throw std::runtime_error("the extra part did not come along");
    Named made;
    made.data = got.block->data();
    made.size_bytes = got.block->size_bytes();
    made.device = got.block->device();
    made.received = std::move(got.block);
    blocks_[name] = std::move(made);
    return {};
  }
  std::string stats(Words&) {
    const DeviceStats memory = process_allocator().stats(kDevice);
    const SharingStats sharing = process_sharing().stats();
    std::ostringstream out;
    out << "allocated " << memory.allocated_bytes[0].current << " active "
        << memory.active_bytes[0].current << " reserved " << memory.reserved_bytes[0].current
        << " limbo " << memory.limbo_bytes << " held_for_readers " << memory.held_for_readers_bytes
        << " exports_open " << sharing.exports_open << " in_flight " << sharing.in_flight
        << " held_claims " << sharing.held_claims << " sends " << sharing.sends << " forwards "
        << sharing.forwards << " forwarders_met " << sharing.forwarders_met << " closed "
        << sharing.closed << " expired " << sharing.expired << " withdrawn " << sharing.withdrawn
        << " leases_connected " << sharing.leases_connected << " leases_quarantined "
        << sharing.leases_quarantined << " leases_swept " << sharing.leases_swept
        << " claims_swept " << sharing.claims_swept << " receives " << sharing.receives
        << " releases " << sharing.releases << " releases_pending " << sharing.releases_pending
        << " double_releases " << sharing.double_releases << " pieces_mapped "
        << sharing.pieces_mapped << " opens " << sharing.opens << " closes " << sharing.closes;
    return out.str();
  }
  // Gives up everything. What stays behind then.
  std::string balance(Words& words) {
    const bool alone = next(words) == "alone";
    for (const Bytes& message : sent_) {
      try {
        process_sharing().withdraw(message);
      } catch (const Error&) {
        // Sent on, and its owner has ended: the message with it.
      }
    }
    sent_.clear();
    for (const auto& [name, held] : blocks_) {
      if (!held.received) process_allocator().free(held.data);
    }
    blocks_.clear();
    std::string left;
    (void)eventually(
        [&] {
          process_allocator().empty_cache();
          left = balance_.left_behind(alone, process_sharing().stats());
          return left.empty();
        },
        std::chrono::seconds(5));
    return left;
  }
  std::string holders(Words&) {
    std::ostringstream out;
    for (const Holder& holder : process_sharing().holders()) {
      out << holder.pid << ' '
          << (holder.state == Holder::State::kConnected ? "connected" : "quarantine") << ' '
          << holder.claims << ' ' << holder.bytes << ' ' << holder.why << '|';
    }
    return out.str();
  }
  std::string driver_calls(Words&) {
    SimDevice& sim = as_sim(device());
    std::uint64_t calls = 0;
    for (std::size_t kind = 0; kind < kCallKinds; ++kind) {
      calls += sim.calls(static_cast<CallKind>(kind));
    }
    return std::to_string(calls);
  }
  // What every block that was received has to refuse in a fork child.
  std::vector<std::function<void()>> uses_of_blocks() {
    std::vector<std::function<void()>> uses;
    for (auto& [name, named] : blocks_) {
      ReceivedBlock* const received = named.received.get();
      if (received == nullptr) continue;
      uses.emplace_back([received] { (void)received->orphaned(); });
      uses.emplace_back([received] { received->came_also_by(*received); });
      uses.emplace_back([received] { received->record_stream({received->device(), nullptr}); });
    }
    return uses;
  }
  // All blocks: they are released and freed when the process's static objects are destroyed.
  std::string keep_until_the_end(Words&) {
    struct Kept {
      ~Kept() {
        blocks.clear();
        for (void* data : allocated) process_allocator().free(data);
      }
      std::map<std::string, Named> blocks;
      std::vector<void*> allocated;
    };
    static Kept kept;
    for (auto& [name, named] : blocks_) {
      if (!named.received) kept.allocated.push_back(named.data);
    }
    kept.blocks = std::move(blocks_);
    blocks_.clear();
    return {};
  }

  using Command = std::function<std::string(Words&)>;
  const std::map<std::string, Command> commands_ = {
      {"allocate", [this](Words& w) { return allocate(w); }},
      {"free", [this](Words& w) { return free(w); }},
      {"fill", [this](Words& w) { return fill(w); }},
      {"holds", [this](Words& w) { return holds(w); }},
      {"write_for", [this](Words& w) { return write_for(w); }},
      {"use_stream", [this](Words& w) { return use_stream(w); }},
      {"destroy_stream", [this](Words& w) { return destroy_stream(w); }},
      {"drop_by_threads", [this](Words& w) { return drop_by_threads(w); }},
      {"drop_aside", [this](Words& w) { return drop_aside(w); }},
      {"begin_capture_during", [this](Words& w) { return begin_capture_during(w); }},
      {"join",
       [this](Words&) {
         aside_.join();
         return std::string();
       }},
      {"record_stream", [this](Words& w) { return record_stream(w); }},
      {"share", [this](Words& w) { return share(w); }},
      {"receive", [this](Words& w) { return receive(w); }},
      {"stats", [this](Words& w) { return stats(w); }},
      {"balance", [this](Words& w) { return balance(w); }},
      {"holders", [this](Words& w) { return holders(w); }},
      {"driver_calls", [this](Words& w) { return driver_calls(w); }},
      {"use_in_fork_child",
       [this](Words& w) { return use_in_fork_child(next<int>(w), uses_of_blocks(), drop_all_); }},
      {"drop_in_fork_children",
       [this](Words& w) {
         const auto children = next<int>(w);
         return drop_in_fork_children(children, from_hex(next(w)), drop_all_);
       }},
      {"came_also_by",
       [this](Words& w) {
         Named& first = block(w);
         first.received->came_also_by(*block(w).received);
         return std::string();
       }},
      {"end_sharing",
       [](Words&) {
         static_cast<SharingService&>(process_sharing()).end(std::chrono::milliseconds(0));
         return std::string();
       }},
      {"keep_until_static_destruction", [this](Words& w) { return keep_until_the_end(w); }},
      {"synchronize",
       [](Words&) {
         device().synchronize_device(kDevice);
         return std::string();
       }},
      {"release",
       [this](Words& w) {
         block(w).received->release();
         return std::string();
       }},
      {"drop",
       [this](Words& w) {
         blocks_.erase(next(w));
         return std::string();
       }},
      {"publish",
       [this](Words& w) {
         const auto name = next(w);
         Named& target = block(w);
         const std::string extra = "extra";
         process_sharing().publish(name, target.data, target.size_bytes, {},
                                   std::as_bytes(std::span(extra)));
         return std::string();
       }},
      {"orphaned",
       [this](Words& w) { return std::string(block(w).received->orphaned() ? "1" : "0"); }},
      {"empty_cache",
       [](Words&) {
         process_allocator().empty_cache();
         return std::string();
       }},
      {"check_invariants",
       [](Words&) {
         process_allocator().check_invariants();
         return std::string();
       }},
      {"set_faults",
       [](Words& w) {
         std::string plan;
         if (w >> plan) {
           as_sim(device()).faults().add(plan);
         } else {
           as_sim(device()).faults().clear();
         }
         return std::string();
       }},
      {"size", [this](Words& w) { return std::to_string(block(w).size_bytes); }},
      {"device", [this](Words& w) { return std::to_string(block(w).device); }},
      {"device_name", [](Words&) { return std::string(device().name()); }},
  };

  PeerBalance balance_;
  std::map<std::string, Named> blocks_;
  const std::function<void()> drop_all_ = [this] { blocks_.clear(); };
  std::vector<Bytes> sent_;
  std::map<std::string, StreamHandle> streams_;
  StreamHandle current_ = nullptr;
  std::unique_ptr<TestKernels> kernels_;
  PeerGraphs graphs_;
  AsideThread aside_;
};

LIMBO_CHILD_ROLE(peer) {
  PeerRole role;
  while (const auto line = child.try_receive()) {
    try {
      child.send("ok " + role.run(*line));
    } catch (const Error& failure) {
      child.send("error " + std::string(error_code_name(failure.code())) + " " + failure.what());
    } catch (const std::exception& failure) {
      child.send(std::string("error other ") + failure.what());
    }
  }
  return 0;
}

}  // namespace
}  // namespace limbo::testing
