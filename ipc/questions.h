// What any process of the user may ask a process that lends, over a connection of its own and
// without saying hello; and how that is answered.
//
// | question     | its fields          | the answer's fields                              |
// |--------------|---------------------|--------------------------------------------------|
// | publish list | from (4)            | next (4), count (2), the names                   |
// | acquire      | name (2 + n)        | a descriptor, made for the asker                 |
// | reap         | force (1)           | leases (8), claims (8)                           |
// | holders      | from (4)            | next (4), count (2), the holders                 |
//
// Whoever acquires says heard (messages.h) when it has the descriptor, and before it names it to others.
// Where its connection ends without that, the message is withdrawn.
//
// An answer is a message of its own type, which begins with the question's (2 bytes); where there is
// none, an error comes instead. Lists come in parts: `next` is what to ask from next time, 0 at the
// end; a list that changes meanwhile may miss a line or repeat one.
//
// Questions arrive on the reaper and are answered on the worker, since sharing makes device calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/protocol/claim.h"
#include "ipc/service_thread.h"
#include "ipc/sharing.h"

namespace limbo {

struct Question {
  MessageType type = MessageType::kPublishList;
  std::string name;        // acquire
  bool force = false;      // reap
  std::uint32_t from = 0;  // lists
};

struct Answer {
  MessageType to = MessageType::kPublishList;
  Bytes descriptor;                // acquire
  Reaped reaped;                   // reap
  std::uint32_t next = 0;          // lists
  std::vector<std::string> names;  // publish list
  std::vector<Holder> holders;
};

[[nodiscard]] bool is_question(MessageType type) noexcept;

[[nodiscard]] MessageBytes encode(const Question& question);
// Of the lists, as many lines from the first on as a message takes; `next` counts from `from`.
// Throws kBadArgument for a descriptor that is too long.
[[nodiscard]] MessageBytes encode(const Answer& answer, std::uint32_t from = 0);
// Of messages that check_frame has passed. False: the fields are not what the type allows.
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Question& question);
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Answer& answer);

// The longest descriptor that an answer takes.
inline constexpr std::size_t kMaxAnsweredDescriptorBytes =
    kMaxMessageBytes - kMessageHeaderBytes - 2;

// A message that was made for whoever acquires a name, and its export.
struct Acquired {
  Bytes descriptor;
  protocol::ClaimTarget made;
};

// Who knows the answers. Called on the worker; throws Error, which is sent instead.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // A message of what is published under this name, promised to one process.
  [[nodiscard]] virtual Acquired acquire_for_other(const std::string& name) = 0;
  // Whoever asked has not heard of it, and never will: nobody opens it.
  virtual void not_delivered(const protocol::ClaimTarget& made) = 0;
  [[nodiscard]] virtual std::vector<std::string> published() = 0;
  [[nodiscard]] virtual std::vector<Holder> lent_to() = 0;
  // Of all reaps since the start.
  [[nodiscard]] virtual Reaped reaped() = 0;
};

// The channel's part. All calls on the reaper.
class Questions : public std::enable_shared_from_this<Questions> {
 public:
  // On the reaper; false: there is no channel any more.
  using Reap = std::function<bool(bool force)>;
  // On the reaper; false: that peer is not reached. `made`, if there is one: the export that the message is
  // about; the channel says not_delivered when the peer goes without having heard of it.
  using Deliver = std::function<bool(std::uint64_t peer, ByteSpan message,
                                     const std::optional<protocol::ClaimTarget>& made)>;

  Questions(ServiceThread& reaper, ServiceThread& worker, Answerer& answerer, Reap reap,
            Deliver deliver);

  // Lasts until the question is answered (channel_bounds.h); means nothing here.
  using Turn = std::shared_ptr<const void>;
  // False: the fields are out of range.
  [[nodiscard]] bool take(std::uint64_t peer, std::span<const std::byte> bytes, const Turn& turn);
  // A peer that was answered has gone without having heard of it.
  void not_delivered(const protocol::ClaimTarget& made);

 private:
  struct Asker {
    std::uint64_t peer = 0;
    Turn turn;
  };
  void answer(const Asker& asker, const Question& question);
  void reap(const Asker& asker, bool force);
  void send(const Asker& asker, MessageBytes message,
            const std::optional<protocol::ClaimTarget>& made = std::nullopt);

  ServiceThread& reaper_;
  ServiceThread& worker_;
  Answerer& answerer_;  // called on the worker, and not after the channel has ended
  const Reap reap_;
  const Deliver deliver_;
};

}  // namespace limbo
