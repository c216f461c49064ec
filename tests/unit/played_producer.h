// A producer that is played by hand, and the links of a process that receives from it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "ipc/channel_socket.h"
#include "ipc/links.h"
#include "tests/unit/channel_support.h"
#include "tests/unit/short_host_memory.h"
#include "tests/unit/sim_support.h"

namespace limbo::testing {

inline constexpr Capacities kPlayedTables{
    .exports = 32, .pieces = 8, .claims = 512, .timelines = 4};

// Everything that has to be gone before the balance is looked at.
struct PlayedProducer {
  PlayedProducer() {
    listener = listen_in(directory, kName);
    auto* header = static_cast<LedgerHeader*>(ledger.data());
    header->magic.store(kLedgerMagic);
    header->version.store(kLedgerVersion);
    header->incarnation_high.store(incarnation.high);
    header->incarnation_low.store(incarnation.low);
  }
  ~PlayedProducer() {
    forget_all();
    ::unlinkat(directory.fd(), kName, 0);
  }
  // What is forgotten is gone when nobody looks at it any more.
  void forget_all() {
    for (auto& link : links.all()) {
      const std::weak_ptr<ProducerLink> gone = link;
      links.forget(std::move(link));
      EXPECT_TRUE(eventually([&] { return gone.expired(); }));
    }
  }

  [[nodiscard]] ProducerAddress address() const { return {incarnation, directory.path(), kName}; }
  // Answers a hello, and says that its tables are so large. False: the connection takes no more.
  [[nodiscard]] bool welcome(int socket, const Capacities& says = kPlayedTables) const {
    Welcome message;
    message.incarnation = incarnation;
    message.capacities = says;
    const int descriptors[] = {ledger.fd(), timelines.get(), row.get(), life_line::far_end(),
                               own_timelines.get()};
    return send_packet(socket, encode(message), descriptors);
  }

  // The first of the consumer's own timelines, as this process may write it.
  [[nodiscard]] SharedWord& own_timeline() {
    if (!own_timelines_seen) {
      own_timelines_seen =
          SharedMemory::map_received("limbo-test", ::fcntl(own_timelines.get(), F_DUPFD_CLOEXEC, 0),
                                     timelines_bytes(kPlayedTables), ReceiverMay::kWrite);
    }
    return static_cast<Timeline*>(own_timelines_seen->data())->value;
  }

  static constexpr const char* kName = "played.sock";
  std::unique_ptr<SimDevice> sim = make_sim();
  RobustDevice device{*sim};
  const RuntimeDirectory directory = RuntimeDirectory::open_own();
  const Incarnation incarnation = random_incarnation();
  SharedMemory ledger =
      SharedMemory::create("limbo-test", ledger_layout(kPlayedTables).total, ReceiverMay::kRead);
  OwnedFd timelines = sealed_memfd(timelines_bytes(kPlayedTables));
  OwnedFd row = sealed_memfd(row_layout(kPlayedTables).total);
  OwnedFd own_timelines = sealed_memfd(timelines_bytes(kPlayedTables));
  std::optional<SharedMemory> own_timelines_seen;
  OwnedFd listener;
  OwnedFd consumer;                // its connection
  std::optional<Links> all_links;  // end behind their threads
  ServiceThread reaper{"test-reaper"};
  ServiceThread unmapper{"test-unmapper"};
  Links& links = all_links.emplace(device, random_incarnation(), reaper, unmapper);
};

}  // namespace limbo::testing
