#include "ipc/questions.h"

#include <algorithm>
#include <utility>

#include "allocator/error.h"
#include "ipc/byte_fields.h"
#include "ipc/fail_points.h"

namespace limbo {
namespace {

constexpr std::size_t kMostNameBytes = 255;  // whether it is a name is the answerer's to say
constexpr std::size_t kMostWhyBytes = 512;
constexpr std::size_t kListHeadBytes = kMessageHeaderBytes + 2 + 4 + 2;

FieldWriter begin_fields(MessageType type) {
  FieldWriter out;
  out.number(static_cast<std::uint16_t>(type));
  out.number(kMessageVersion);
  out.number(std::uint32_t{0});
  return out;
}

MessageBytes finish_fields(FieldWriter&& out) {
  out.patch_u32(4, static_cast<std::uint32_t>(out.size()));
  return out.take();
}

FieldReader fields_of(std::span<const std::byte> bytes) {
  return FieldReader(bytes.subspan(kMessageHeaderBytes));
}

void write_holder(FieldWriter& out, const Holder& holder) {
  out.number(static_cast<std::uint64_t>(holder.pid));
  out.text(holder.incarnation);
  out.number(static_cast<std::uint8_t>(holder.state));
  out.text(std::string_view(holder.why).substr(0, kMostWhyBytes));
  out.number(holder.claims);
  out.number(holder.bytes);
  out.number(holder.mapped_pieces);
  out.number(holder.mapped_bytes);
  out.number(static_cast<std::uint64_t>(holder.oldest_claim.count()));
}

// False: it is none.
bool read_holder(FieldReader& in, Holder& holder) {
  holder.pid = static_cast<std::int64_t>(in.number<std::uint64_t>());
  holder.incarnation = in.text();
  const auto state = in.number<std::uint8_t>();
  holder.why = in.text();
  holder.claims = in.number<std::uint64_t>();
  holder.bytes = in.number<std::uint64_t>();
  holder.mapped_pieces = in.number<std::uint64_t>();
  holder.mapped_bytes = in.number<std::uint64_t>();
  holder.oldest_claim =
      std::chrono::milliseconds(static_cast<std::int64_t>(in.number<std::uint64_t>()));
  holder.state = static_cast<Holder::State>(state);
  return !in.ran_short() && state <= static_cast<std::uint8_t>(Holder::State::kQuarantine) &&
         holder.pid >= 0 && holder.oldest_claim.count() >= 0;
}

// The lines from `from` on that fit: next, count, lines.
template <typename Line, typename Write>
void write_part(FieldWriter& out, const std::vector<Line>& lines, std::uint32_t from,
                Write&& write) {
  FieldWriter part;
  std::uint16_t count = 0;
  std::size_t index = from;
  for (; index < lines.size(); ++index) {
    FieldWriter line;
    write(line, lines[index]);
    if (kListHeadBytes + part.size() + line.size() > kMaxMessageBytes) break;
    part.raw(line.view());
    ++count;
  }
  out.number(index < lines.size() ? static_cast<std::uint32_t>(index) : std::uint32_t{0});
  out.number(count);
  out.raw(part.view());
}

template <typename Line, typename Read>
bool read_part(FieldReader& in, std::uint32_t& next, std::vector<Line>& lines, Read&& read) {
  next = in.number<std::uint32_t>();
  const auto count = in.number<std::uint16_t>();
  for (std::uint16_t i = 0; i < count; ++i) {
    Line line;
    if (!read(in, line)) return false;
    lines.push_back(std::move(line));
  }
  return in.finished();
}

MessageBytes refusal_of(const Error& failure) {
  return encode(Refused{failure.code(), failure.what()}, MessageType::kError);
}

}  // namespace

bool is_question(MessageType type) noexcept {
  return type == MessageType::kPublishList || type == MessageType::kAcquire ||
         type == MessageType::kReap || type == MessageType::kHolders;
}

MessageBytes encode(const Question& question) {
  FieldWriter out = begin_fields(question.type);
  if (question.type == MessageType::kAcquire) {
    out.text(std::string_view(question.name).substr(0, kMostNameBytes));
  } else if (question.type == MessageType::kReap) {
    out.number(static_cast<std::uint8_t>(question.force ? 1 : 0));
  } else {
    out.number(question.from);
  }
  return finish_fields(std::move(out));
}

bool decode(std::span<const std::byte> bytes, Question& question) {
  question = {};
  question.type = static_cast<MessageType>(FieldReader(bytes).number<std::uint16_t>());
  FieldReader in = fields_of(bytes);
  if (question.type == MessageType::kAcquire) {
    question.name = in.text();
    return in.finished() && question.name.size() <= kMostNameBytes;
  }
  if (question.type == MessageType::kReap) {
    const auto force = in.number<std::uint8_t>();
    question.force = force == 1;
    return in.finished() && force <= 1;
  }
  question.from = in.number<std::uint32_t>();
  return in.finished() && is_question(question.type);
}

MessageBytes encode(const Answer& answer, std::uint32_t from) {
  FieldWriter out = begin_fields(MessageType::kAnswer);
  out.number(static_cast<std::uint16_t>(answer.to));
  switch (answer.to) {
    case MessageType::kAcquire:
      if (answer.descriptor.size() > kMaxAnsweredDescriptorBytes) {
        throw Error(ErrorCode::kBadArgument,
                    "The message has " + std::to_string(answer.descriptor.size()) + " bytes.",
                    "At most " + std::to_string(kMaxAnsweredDescriptorBytes) +
                        " travel to whoever acquires a name: publish with a shorter extra part.");
      }
      out.raw(answer.descriptor);
      break;
    case MessageType::kReap:
      out.number(answer.reaped.leases);
      out.number(answer.reaped.claims);
      break;
    case MessageType::kHolders:
      write_part(out, answer.holders, from, write_holder);
      break;
    default:
      write_part(out, answer.names, from,
                 [](FieldWriter& line, const std::string& name) { line.text(name); });
  }
  return finish_fields(std::move(out));
}

bool decode(std::span<const std::byte> bytes, Answer& answer) {
  answer = {};
  FieldReader in = fields_of(bytes);
  answer.to = static_cast<MessageType>(in.number<std::uint16_t>());
  switch (answer.to) {
    case MessageType::kAcquire: {
      const auto descriptor = bytes.subspan(std::min(bytes.size(), kMessageHeaderBytes + 2));
      answer.descriptor.assign(descriptor.begin(), descriptor.end());
      return !in.ran_short() && !descriptor.empty();
    }
    case MessageType::kReap:
      answer.reaped.leases = in.number<std::uint64_t>();
      answer.reaped.claims = in.number<std::uint64_t>();
      return in.finished();
    case MessageType::kHolders:
      return read_part(in, answer.next, answer.holders, read_holder);
    case MessageType::kPublishList:
      return read_part(in, answer.next, answer.names, [](FieldReader& line, std::string& name) {
        name = line.text();
        return !line.ran_short();
      });
    default:
      return false;
  }
}

Questions::Questions(ServiceThread& reaper, ServiceThread& worker, Answerer& answerer, Reap reap,
                     Deliver deliver)
    : reaper_(reaper),
      worker_(worker),
      answerer_(answerer),
      reap_(std::move(reap)),
      deliver_(std::move(deliver)) {}

bool Questions::take(std::uint64_t peer, std::span<const std::byte> bytes, const Turn& turn) {
  Question question;
  if (!decode(bytes, question)) return false;
  const Asker asker{peer, turn};
  if (question.type == MessageType::kReap) {
    reap(asker, question.force);
  } else {
    worker_.post([self = shared_from_this(), asker, question] { self->answer(asker, question); });
  }
  return true;
}

// On the worker. Where there is no memory for an answer the asker waits in vain, but what was made
// for it is not kept.
void Questions::answer(const Asker& asker, const Question& question) {
  Answer answer;
  answer.to = question.type;
  std::optional<protocol::ClaimTarget> made;
  try {
    if (question.type == MessageType::kAcquire) {
      Acquired acquired = answerer_.acquire_for_other(question.name);
      made = acquired.made;
      answer.descriptor = std::move(acquired.descriptor);
      LIMBO_FAIL_POINT("acquire.after_share");
    }
    if (question.type == MessageType::kPublishList) answer.names = answerer_.published();
    if (question.type == MessageType::kHolders) answer.holders = answerer_.lent_to();
    send(asker, encode(answer, question.from), made);
  } catch (const Error& failure) {
    if (made) answerer_.not_delivered(*made);
    send(asker, refusal_of(failure));
  } catch (const std::exception&) {
    if (made) answerer_.not_delivered(*made);
    send(asker, refusal_of(Error(ErrorCode::kNoChannel, "Its owner's host memory is used up.")));
  }
}

// Worker, reaper, worker: so that what was posted before is counted as before.
void Questions::reap(const Asker& asker, bool force) {
  worker_.post([self = shared_from_this(), asker, force] {
    const Reaped before = self->answerer_.reaped();
    self->reaper_.post([self, asker, force, before] {
      if (!self->reap_(force)) return;
      self->worker_.post([self, asker, before] {
        const Reaped after = self->answerer_.reaped();
        Answer answer;
        answer.to = MessageType::kReap;
        answer.reaped = {after.leases - before.leases, after.claims - before.claims};
        self->send(asker, encode(answer));
      });
    });
  });
}

void Questions::send(const Asker& asker, MessageBytes message,
                     const std::optional<protocol::ClaimTarget>& made) {
  reaper_.post([self = shared_from_this(), asker, message = std::move(message), made] {
    if (!self->deliver_(asker.peer, message, made) && made) self->not_delivered(*made);
  });
}

void Questions::not_delivered(const protocol::ClaimTarget& made) {
  worker_.post([self = shared_from_this(), made] { self->answerer_.not_delivered(made); });
}

}  // namespace limbo
