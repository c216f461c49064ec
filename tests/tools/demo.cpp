// The demo: allocate, lend, receive, release, collect, survive a kill.
//
// This process is the producer; it replays a recorded trace as its load and lends some of the
// blocks to two consumer processes. Halfway one of them is killed while it reads blocks. At the
// end every block must have come back, and none may have changed under a reader.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "allocator/allocator.h"
#include "ipc/sharing.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/sandbox.h"
#include "tests/support/text_table.h"
#include "tests/support/trace.h"
#include "tests/tools/demo/consumer.h"
#include "tests/tools/demo/load.h"
#include "tests/tools/demo/options.h"
#include "tests/tools/demo/peer.h"

namespace limbo::demo {
namespace {

using testing::eventually;
using testing::in_mib;
using Clock = std::chrono::steady_clock;

LIMBO_CHILD_ROLE(demo_consumer) {
  return run_consumer(child);
}

std::string blocks(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " block" : " blocks");
}

class Demo {
 public:
  Demo(const Options& options, const std::string& device, const std::string& why)
      : options_(options),
        trace_(testing::read_trace(testing::test_data(kTraceName))),
        allocator_(process_allocator()),
        sharing_(process_sharing()) {
    std::printf("Limbo demo on the %s device%s.\n\n", device.c_str(),
                why.empty() ? "" : (", since " + why).c_str());
  }

  // The exit status.
  int run() {
    start();
    run_until_half();
    kill_one();
    while (Clock::now() < start_ + options_.duration && !load_->failed()) wait_a_little();
    load_->stop();
    survivor_->give_back();
    // Before it ends: what it had not given back would be swept then.
    noted_ = holds(*survivor_, 0) && noted_;
    survivor_->end();
    return report();
  }

 private:
  static constexpr char kTraceName[] = "traces/multistream.trace";
  // How long the demo waits for what must come back; it takes milliseconds.
  static constexpr std::chrono::milliseconds kPatience{10'000};

  static void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

  void start() {
    survivor_ = std::make_unique<Peer>("reader A");
    victim_ = std::make_unique<Peer>("reader B");
    std::printf(
        "Producer: process %d. It replays %s: %u allocations on %u streams, %s MiB at once;\n"
        "every second block of up to 16 MiB is lent, and freed when the trace frees it.\n"
        "Consumers: %s is process %d, %s is process %d. Each checks every word of a block\n"
        "when it gets it and again when it gives it back.\n\n",
        getpid(), kTraceName, trace_.block_count, trace_.stream_count,
        in_mib(trace_.peak_bytes).c_str(), survivor_->name().c_str(), survivor_->pid(),
        victim_->name().c_str(), victim_->pid());
    std::fflush(stdout);
    start_ = Clock::now();
    load_ = std::make_unique<Load>(allocator_, sharing_, trace_,
                                   std::vector<Peer*>{survivor_.get(), victim_.get()},
                                   options_.most_lent);
  }

  void run_until_half() {
    const auto half = start_ + options_.duration / 2;
    const auto enough = [&] {
      return options_.most_lent != 0 && load_->lent() >= options_.most_lent;
    };
    while (Clock::now() < half && !enough() && !load_->failed()) wait_a_little();
    // Nobody is killed for nothing.
    (void)eventually([&] { return victim_->received() > 0 || load_->failed(); });
  }

  void kill_one() {
    victim_->hold();
    const std::uint64_t held = victim_->received() - victim_->released();
    noted_ = holds(*victim_, held);
    std::printf("After %.1f s, before %s is killed:\n\n", seconds_since(start_),
                victim_->name().c_str());
    print_holders();

    const auto killed = Clock::now();
    victim_->kill();
    const bool returned = eventually(
        [&] { return sharing_.stats().claims_swept >= held && claims_of(victim_->pid()) == 0; },
        kPatience);
    const auto returned_after = Clock::now() - killed;
    std::printf("%s is killed by SIGKILL while it reads %s. ", victim_->name().c_str(),
                blocks(held).c_str());
    if (returned) {
      std::printf("%s back after %.0f ms:\n\n", held == 1 ? "It is" : "They are",
                  std::chrono::duration<double, std::milli>(returned_after).count());
    } else {
      std::printf("%s NOT come back within %.0f s:\n\n", held == 1 ? "It did" : "They did",
                  std::chrono::duration<double>(kPatience).count());
    }
    print_holders();
    std::fflush(stdout);
  }

  // Whether the producer comes to see that the consumer holds so many claims.
  bool holds(const Peer& peer, std::uint64_t claims) {
    return eventually(
        [&] {
          sharing_.collect();
          return claims_of(peer.pid()) == claims;
        },
        kPatience);
  }

  std::uint64_t claims_of(pid_t pid) {
    std::uint64_t claims = 0;
    for (const Holder& holder : sharing_.holders()) {
      if (holder.pid == pid) claims += holder.claims;
    }
    return claims;
  }

  void print_holders() {
    testing::TextTable table(
        {"who", ">process", "state", ">blocks held", ">MiB held", ">pieces mapped", ">oldest"});
    for (const Holder& holder : sharing_.holders()) {
      const Peer& peer = holder.pid == victim_->pid() ? *victim_ : *survivor_;
      table.add_row(
          {peer.name(), std::to_string(holder.pid),
           holder.state == Holder::State::kConnected ? "connected" : "ended: " + holder.why,
           std::to_string(holder.claims), in_mib(holder.bytes),
           std::to_string(holder.mapped_pieces),
           std::to_string(holder.oldest_claim.count()) + " ms"});
    }
    const DeviceStats stats = allocator_.stats(0);
    std::printf(
        "%s\n  producer: %s MiB allocated; %s MiB (%lld blocks) in limbo, freed here and "
        "still read there\n\n",
        table.text("  ").c_str(),
        in_mib(static_cast<std::uint64_t>(stats.allocated_bytes[0].current)).c_str(),
        in_mib(static_cast<std::uint64_t>(stats.limbo_bytes)).c_str(),
        static_cast<long long>(stats.limbo_blocks));
  }

  // Everything is back where it was before the first allocation.
  bool settled() {
    sharing_.collect();
    const DeviceStats stats = allocator_.stats(0);
    const SharingStats sharing = sharing_.stats();
    return stats.allocated_bytes[0].current == 0 && stats.active_bytes[0].current == 0 &&
           stats.limbo_blocks == 0 && sharing.exports_open == 0 && sharing.held_claims == 0 &&
           sharing.leases_connected == 0 && sharing.leases_quarantined == 0;
  }

  bool all_returned_to_driver() {
    allocator_.empty_cache();
    return allocator_.stats(0).reserved_bytes[0].current == 0;
  }

  int report() {
    const bool back = eventually([&] { return settled(); }, kPatience);
    const bool empty = back && eventually([&] { return all_returned_to_driver(); }, kPatience);
    const DeviceStats stats = allocator_.stats(0);
    const std::uint64_t lent = load_->lent();
    const std::uint64_t released = survivor_->released() + victim_->released();
    const std::uint64_t corrupted =
        load_->corrupted() + survivor_->corrupted() + victim_->corrupted();
    const std::uint64_t swept = sharing_.stats().claims_swept;
    const std::uint64_t returned = released + swept;
    // Blocks that never came back, and at least one where any number is not what it was.
    std::uint64_t lost = lent > returned ? lent - returned : returned - lent;
    lost += static_cast<std::uint64_t>(stats.active[0].current);
    if (lost == 0 && !(back && empty && noted_)) lost = 1;

    std::printf(
        "After %.1f s and %u allocations:\n\n"
        "  received by the consumers  %llu of %llu blocks lent\n"
        "  allocated, active, limbo   %s, %s, %s MiB\n"
        "  reserved                   %s MiB after empty_cache (peak %s MiB)\n\n",
        seconds_since(start_), load_->allocations(),
        static_cast<unsigned long long>(survivor_->received() + victim_->received()),
        static_cast<unsigned long long>(lent), mib(stats.allocated_bytes[0].current).c_str(),
        mib(stats.active_bytes[0].current).c_str(), mib(stats.limbo_bytes).c_str(),
        mib(stats.reserved_bytes[0].current).c_str(), mib(stats.reserved_bytes[0].peak).c_str());
    std::printf("demo: lent=%llu released=%llu swept=%llu lost=%llu corrupted=%llu\n",
                static_cast<unsigned long long>(lent), static_cast<unsigned long long>(released),
                static_cast<unsigned long long>(swept), static_cast<unsigned long long>(lost),
                static_cast<unsigned long long>(corrupted));
    return lost == 0 && corrupted == 0 && swept > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
  }

  static std::string mib(std::int64_t bytes) { return in_mib(static_cast<std::uint64_t>(bytes)); }

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const Options& options_;
  const testing::Trace trace_;
  Allocator& allocator_;
  Sharing& sharing_;
  std::unique_ptr<Peer> survivor_;
  std::unique_ptr<Peer> victim_;
  std::unique_ptr<Load> load_;  // uses the peers: made after them, gone before them
  Clock::time_point start_;
  bool noted_ = false;  // the producer counted what the consumers say they held
};

int run_demo(int argc, char** argv) {
  std::optional<Options> options;
  try {
    options = parse_options(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  if (!options) return EXIT_SUCCESS;
  std::string why;
  const std::string device = chosen_device(*options, why);
  setenv("LIMBO_DEVICE", device.c_str(), 1);
  // Other programs of this user are left alone.
  const testing::Sandbox sandbox;
  return Demo(*options, device, why).run();
}

}  // namespace
}  // namespace limbo::demo

int main(int argc, char** argv) {
  if (const auto status = limbo::testing::run_child_role(argc, argv)) return *status;
  try {
    return limbo::demo::run_demo(argc, argv);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "The demo failed: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
