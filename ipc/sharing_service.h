// The implementation of Sharing: puts the parts of ipc/ together. There is one per process
// (process.cpp), made at the first call and never destroyed.
//
// Threads, device and listener start at the first use that needs them: the consumer's side at the
// first receive of a foreign message, the producer's at the first share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "ipc/sharing.h"

namespace limbo {

struct Descriptor;
struct ExportTicket;
struct Holding;

class Publications;

class SharingService : public Sharing {
 public:
  using DeviceSource = Device& (*)();
  using AllocatorSource = Allocator& (*)();

  SharingService(DeviceSource device, AllocatorSource allocator);
  ~SharingService() override;

  [[nodiscard]] Bytes share(const void* data, std::size_t size_bytes, const ShareOptions& options,
                            ByteSpan extra) override;
  [[nodiscard]] Received receive(ByteSpan descriptor, const ReceiveOptions& options) override;
  [[nodiscard]] Bytes peek_extra(ByteSpan descriptor) override;
  void withdraw(ByteSpan descriptor) override;
  bool collect() override;
  Reaped reap(bool force) override;
  [[nodiscard]] std::vector<Holder> holders() override;
  [[nodiscard]] SharingStats stats() override;
  bool keep_for_graph(StreamRef capturing) override;
  bool drain(std::chrono::milliseconds at_most) override;
  [[nodiscard]] Incarnation incarnation() override;
  void publish(const std::string& name, const void* data, std::size_t size_bytes,
               const ShareOptions& options, ByteSpan extra) override;
  bool unpublish(const std::string& name) override;
  [[nodiscard]] Bytes acquire(const std::string& name) override;
  [[nodiscard]] std::vector<PublishedName> names() override;
  [[nodiscard]] std::vector<LendingProcess> processes() override;
  [[nodiscard]] std::vector<Holder> holders_of(const LendingProcess& process) override;
  [[nodiscard]] std::vector<std::string> published_by(const LendingProcess& process) override;
  Reaped reap_in(const LendingProcess& process, bool force) override;

  // Called once, after the threads have started. Before the first use only.
  void when_started(void (*callback)()) noexcept { on_start_ = callback; }

  // The process ends: waits until what is in flight has arrived, at most so long; removes the
  // socket; makes no device call from here on.
  void end(std::chrono::milliseconds drain_at_most) noexcept;

  // For tests: throws Error(kInternal) with the first broken invariant of what this process lends.
  void check_invariants();

 private:
  struct Engine;
  struct Lending;

  [[nodiscard]] Engine& engine();
  [[nodiscard]] Lending& lending();
  // Null: this process has not lent anything, and `make` does not ask for it.
  [[nodiscard]] Publications* publications(bool make);
  static void check_extra(std::size_t size_bytes);
  bool share_held(const void* data, std::size_t size_bytes, const ShareOptions& options,
                  Descriptor& descriptor);
  void share_own(const void* data, std::size_t size_bytes, const ShareOptions& options,
                 Descriptor& descriptor);
  [[nodiscard]] static ExportTicket share_received(Lending& lend, Holding& held, const void* data,
                                                   std::size_t size_bytes,
                                                   const ShareOptions& options);
  void take_back(const Descriptor& descriptor);
  void decline(const Descriptor& descriptor) noexcept;
  [[nodiscard]] bool is_of_this_process(const Descriptor& descriptor);

  const DeviceSource device_source_;
  const AllocatorSource allocator_source_;
  void (*on_start_)() = nullptr;

  // Guards making the next four, once. `owned_incarnation_` is read behind `engine_`.
  std::mutex making_;
  Incarnation owned_incarnation_;
  std::unique_ptr<Engine> owned_engine_;
  std::unique_ptr<Lending> owned_lending_;
  std::atomic<Engine*> engine_{nullptr};
  std::atomic<Lending*> lending_{nullptr};
};

}  // namespace limbo
