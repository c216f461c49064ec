// A channel with a keeper that writes down what it is told, and consumers that are played by hand.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "ipc/channel.h"
#include "ipc/handshake.h"
#include "ipc/incarnation.h"
#include "ipc/life_line.h"
#include "ipc/messages.h"
#include "ipc/packet.h"
#include "ipc/questions.h"
#include "tests/support/balance.h"
#include "tests/support/eventually.h"
#include "tests/unit/short_host_memory.h"

namespace limbo::testing {

inline OwnedFd sealed_memfd(std::size_t size_bytes) {
  OwnedFd fd(::memfd_create("limbo-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size_bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  return fd;
}
// Grants leases over tables of its own and writes down what it is told.
class FakeKeeper : public LeaseKeeper {
 public:
  FakeKeeper() {
    capacities_ = {1024, 64, 1024, 64};
    ledger_ = sealed_memfd(ledger_layout(capacities_).total);
    timelines_ = sealed_memfd(timelines_bytes(capacities_));
    row_ = sealed_memfd(row_layout(capacities_).total);
    own_timelines_ = sealed_memfd(timelines_bytes(capacities_));
  }

  LeaseGrant add_lease(const LeasePeer& peer) override {
    if (refuse_) throw Error(ErrorCode::kLedgerFull, "No lease is left.");
    process_ = peer.identity.process;
    note("add " + std::to_string(peer.identity.pid));
    return {next_lease_++,    capacities_, ledger_.get(),
            timelines_.get(), row_.get(),  own_timelines_.get()};
  }
  void lease_gone(std::uint32_t lease, const std::string& why) override {
    note("gone " + std::to_string(lease) + " " + why);
  }
  void lease_quiet(std::uint32_t lease) override {
    const PlentyOfHostMemory plenty;  // a producer needs none for that
    note("quiet " + std::to_string(lease));
  }
  void decline(std::uint32_t lease, std::uint32_t index, std::uint64_t generation) override {
    note("decline " + std::to_string(lease) + " " + std::to_string(index) + " " +
         std::to_string(generation));
  }
  void row_half_full(std::uint32_t lease) override { note("half " + std::to_string(lease)); }
  void context_lost(std::uint32_t lease) override { note("lost " + std::to_string(lease)); }
  protocol::ClaimTarget forward(std::uint32_t lease, const ForwardRequest& request, int pidfd,
                                int life_line, std::uint32_t) override {
    EXPECT_GE(pidfd, 0);
    EXPECT_GE(life_line, 0);
    note("forward " + std::to_string(lease) + " " + std::to_string(request.held.export_index));
    if (refuse_) throw Error(ErrorCode::kWithdrawn, "It was taken back.");
    return {request.held.export_index + 1, request.held.generation + 1};
  }
  ForwarderFiles forwarder_files(std::uint32_t lease) override {
    throw Error(ErrorCode::kGone, "Lease " + std::to_string(lease) + " has sent nothing on.");
  }
  bool complete_waits(std::uint32_t) override { return false; }
  void heard(std::uint32_t lease, const protocol::ClaimTarget& made) override {
    note("heard " + std::to_string(lease) + " " + std::to_string(made.export_index) + " " +
         std::to_string(made.generation));
  }
  void hears_no_more(std::uint32_t lease) override {
    note("hears no more " + std::to_string(lease));
  }
  void lease_forced(std::uint32_t lease) override { note("forced " + std::to_string(lease)); }
  void take_back(std::uint32_t lease, std::uint32_t index, std::uint64_t generation) override {
    note("take back " + std::to_string(lease) + " " + std::to_string(index) + " " +
         std::to_string(generation));
  }
  bool lease_left(std::uint32_t lease) override {
    note("left " + std::to_string(lease));
    return believes_;
  }

  bool noted(const std::string& line) {
    const std::lock_guard lock(mutex_);
    return std::find(lines_.begin(), lines_.end(), line) != lines_.end();
  }
  std::size_t notes() { return lines().size(); }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  // How many lines begin so.
  std::size_t count(const std::string& beginning) {
    const auto all = lines();
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](const std::string& line) {
          return line.compare(0, beginning.size(), beginning) == 0;
        }));
  }
  std::atomic<bool> refuse_{false};
  std::atomic<std::uint64_t> process_{0};  // of who came last
  std::atomic<bool> believes_{true};
  Capacities capacities_;
  OwnedFd row_;

 private:
  void note(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }

  OwnedFd ledger_;
  OwnedFd timelines_;
  OwnedFd own_timelines_;
  std::mutex mutex_;  // guards lines_
  std::vector<std::string> lines_;
  std::uint32_t next_lease_ = 0;
};

// When the channel is gone its last tasks go from thread to thread still: they are waited for before
// either thread ends.
struct LastTasks {
  ServiceThread& reaper;
  ServiceThread& worker;

  ~LastTasks() {
    for (ServiceThread* thread : {&worker, &reaper, &worker}) run_and_wait(*thread, [] {});
  }
};

class ChannelTest : public BalancedTest {
 protected:
  // Made and gone inside the balance.
  struct Stack {
    explicit Stack(Answerer* its_answerer = nullptr) : answerer(its_answerer) {}

    Answerer* const answerer;
    FakeKeeper keeper;
    ServiceThread reaper{"test-reaper"};
    ServiceThread worker{"test-worker"};
    const LastTasks last_tasks{reaper, worker};
    const Incarnation incarnation = random_incarnation();
    Channel channel{reaper, worker, keeper, incarnation, answerer};
  };
  void SetUp() override {
    BalancedTest::SetUp();
    stack_ = std::make_unique<Stack>();
  }
  void TearDown() override {
    stack_.reset();
    BalancedTest::TearDown();
  }
  FakeKeeper& keeper() { return stack_->keeper; }
  Channel& channel() { return stack_->channel; }
  [[nodiscard]] ProducerAddress address() {
    return {stack_->incarnation, channel().directory(), channel().socket_name()};
  }
  // A connection that has said nothing yet.
  [[nodiscard]] OwnedFd connect() {
    OwnedFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const auto directory = RuntimeDirectory::open_existing(channel().directory());
    const sockaddr_un where = directory.address(channel().socket_name());
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)), 0);
    return socket;
  }
  // Waits for the next packet.
  static Packet next(int socket) {
    Packet packet;
    EXPECT_TRUE(
        eventually([&] { return receive_packet(socket, packet) == PacketStatus::kPacket; }));
    return packet;
  }
  static Refused next_refusal(int socket, MessageType type) {
    const Packet packet = next(socket);
    MessageHeader header;
    EXPECT_EQ(check_frame(packet.bytes, packet.descriptors.size(), header), "");
    EXPECT_EQ(header.type, static_cast<std::uint16_t>(type));
    Refused refused;
    EXPECT_TRUE(decode(packet.bytes, refused));
    return refused;
  }
  static MessageBytes hello_bytes() {
    Hello hello;
    hello.incarnation = random_incarnation();
    return encode(hello);
  }
  // Somebody says hello and goes, before the reaper comes to read it.
  void say_hello_and_go() {
    std::atomic<bool> gone{false};
    stack_->reaper.post([&] {
      while (!gone) std::this_thread::yield();
    });
    {
      const OwnedFd socket = connect();
      const int line[] = {life_line::far_end()};
      EXPECT_TRUE(send_packet(socket.get(), hello_bytes(), line));
    }
    gone = true;
    run_and_wait(stack_->reaper, [] {});
  }

  // A consumer with a life line of its own.
  struct Consumer {
    OwnedFd socket;
    OwnedFd held;
  };
  // The same that has said hello, and has not read the answer.
  [[nodiscard]] Consumer greeting(std::uint32_t flags = 0) {
    const life_line::Ends line = life_line::make_ends();
    Consumer consumer{connect(), OwnedFd(line.held)};
    const OwnedFd far(line.far);
    const int sent[] = {far.get()};
    Hello hello;
    hello.incarnation = random_incarnation();
    hello.life_line_flags = flags;
    EXPECT_TRUE(send_packet(consumer.socket.get(), encode(hello), sent));
    return consumer;
  }
  [[nodiscard]] Consumer welcomed(std::uint32_t flags = 0) {
    Consumer consumer = greeting(flags);
    EXPECT_EQ(next(consumer.socket.get()).descriptors.size(), Welcome::kDescriptors);
    return consumer;
  }
  static bool closed(int socket) {
    Packet packet;
    return receive_packet(socket, packet) == PacketStatus::kClosed;
  }

  std::unique_ptr<Stack> stack_;
};

}  // namespace limbo::testing
