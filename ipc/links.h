// All producers that this process has a standing with.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "ipc/connection.h"
#include "ipc/holdings.h"
#include "ipc/producer_link.h"
#include "ipc/service_thread.h"

namespace limbo {

class Links {
 public:
  Links(Device& device, const Incarnation& own, ServiceThread& reaper, ServiceThread& unmapper);
  // When the threads have ended. Only where nobody has a link any more.
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // The connection to a producer, made if there is none that can be used. Threads that want the
  // same one at once connect once, and share the outcome. Throws as shake_hands does;
  // kProducerExited when the one there is belongs to a dead producer. `promised`: the message that it
  // is wanted for; where no link can be made on a connection, the producer is told, and likewise where
  // this process is ending (kNoChannel).
  [[nodiscard]] std::shared_ptr<ProducerLink> get(const ProducerAddress& address,
                                                  const Decline& promised);

  // Every link that still has something, dead ones too.
  [[nodiscard]] std::vector<std::shared_ptr<ProducerLink>> all();

  // Forgets a link that cannot be used any more. The caller has seen that nothing of it is held,
  // landing or mapped. The reaper ends its watches; then, when nobody has it any more (a block that was
  // released asks it still who lives), its tables are unmapped on the unmapper, which may wait for
  // kernels. Where it throws (there is no memory) nothing has changed.
  void forget(std::shared_ptr<ProducerLink> link);

  // Whether this process has sent on by that lease, also when the link is forgotten.
  [[nodiscard]] bool has_sent_on(const Incarnation& producer, std::uint32_t lease_number);

  // This process's GPU context is lost: lets everybody pass who waits for its work, and tells the
  // owners. Whoever notices a loss says it to all of them.
  void tell_context_lost() noexcept;
  // This process has opened something by the driver: where its life line proves less since, the
  // producers are told, so that they give its work more time.
  void tell_life_line() noexcept;
  // Whether the streams have got to all numbers that were taken to send on. Makes no device call.
  [[nodiscard]] bool own_numbers_landed();

  // What this process holds of them, by address.
  [[nodiscard]] Holdings& holdings() noexcept { return holdings_; }

  // The process ends: no link is made any more, and leases of which nothing is left are given back.
  // What is forgotten stays mapped.
  void leave() noexcept;

 private:
  // One thread's connecting, which others wait for. Guarded by mutex_, but for the messages.
  struct Attempt {
    explicit Attempt(const Decline& first) : promised(std::make_shared<PromisedMessages>(first)) {}
    const std::shared_ptr<PromisedMessages> promised;  // everybody's
    bool over = false;
    std::optional<Error> failure;
  };
  // A link, and the chain of those that nobody has any more.
  struct Kept {
    std::optional<ProducerLink> link;
    Kept* next = nullptr;
  };
  struct Entry {
    Incarnation producer;
    std::shared_ptr<ProducerLink> link;
    std::shared_ptr<Attempt> attempt;  // while there is no link
  };

  // This process is ending: tells the producer that it will not open the message.
  void decline(const ProducerAddress& address, const Decline& promised) const noexcept;
  [[nodiscard]] std::shared_ptr<ProducerLink> connect(const ProducerAddress& address,
                                                      const std::shared_ptr<Attempt>& attempt);
  // `failure`: what those who wait are told, where there are words for it.
  void end(const std::shared_ptr<Attempt>& attempt, std::shared_ptr<ProducerLink> link,
           const Error* failure) noexcept;
  // The reaper ends the watches of forgotten links, and passes them to the unmapper.
  void unwatch_forgotten();
  [[nodiscard]] bool has_left();
  // A link's last reference has gone, on whichever thread.
  void drop(Kept* last) noexcept;
  // The unmapper's periodic. False: some stay, since it cannot be told yet whether their numbers have
  // landed.
  [[nodiscard]] bool drop_unwatched() noexcept;
  [[nodiscard]] Kept* take_dropped() noexcept;
  // The reaper's periodic: makes no device call.
  [[nodiscard]] std::optional<ServiceThread::Clock::time_point> run(
      ServiceThread::Clock::time_point now);

  Device& device_;
  const Incarnation own_;
  ServiceThread& reaper_;
  ServiceThread& unmapper_;
  Holdings holdings_;

  std::mutex mutex_;  // guards what follows; nothing is called under it
  std::condition_variable connected_;
  std::vector<Entry> entries_;
  std::vector<std::pair<Incarnation, std::uint32_t>> sent_on_;  // leases of forgotten links
  std::list<std::shared_ptr<ProducerLink>> forgotten_;          // watched still
  std::list<std::shared_ptr<ProducerLink>> unwatched_;
  Kept* dropped_ = nullptr;  // a chain: nobody has these any more
  bool ended_ = false;
  bool left_ = false;
};

}  // namespace limbo
