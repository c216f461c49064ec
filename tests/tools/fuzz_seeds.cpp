// Writes the inputs that the fuzz targets start from: one of each kind that a target knows.
//
//     limbo_fuzz_seeds tests/fuzz/seeds
//
// To be run again when a descriptor, a message or a target's reading of its input has changed.
// Inputs that were kept for another reason (regression-*) stay.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include "ipc/byte_fields.h"
#include "ipc/channel.h"
#include "ipc/descriptor.h"
#include "ipc/life_line.h"
#include "ipc/messages.h"
#include "ipc/questions.h"

namespace limbo {
namespace {

namespace fs = std::filesystem;

Bytes join(std::initializer_list<int> head, ByteSpan tail = {}) {
  Bytes bytes;
  for (const int byte : head) bytes.push_back(static_cast<std::byte>(byte));
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

class Folder {
 public:
  explicit Folder(const fs::path& path) : path_(path) { fs::create_directories(path); }
  void put(const std::string& name, const Bytes& bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    if (!file) throw std::runtime_error("cannot write " + (path_ / name).string());
  }

 private:
  fs::path path_;
};

Descriptor sample() {
  Descriptor descriptor;
  descriptor.producer = {1, 2};
  descriptor.ticket.piece_size_bytes = 2 << 20;
  descriptor.ticket.size_bytes = 512;
  descriptor.directory = "/tmp/limbo-0";
  descriptor.socket_name = channel_socket_name(descriptor.producer);
  descriptor.extra = join({1, 2, 3});
  return descriptor;
}

// Byte 0: descriptor whole (0), its fields (1), message whole (2), its fields (3); messages: then
// the number of descriptors.
void decoders(const Folder& to) {
  const Bytes whole = encode_descriptor(sample());
  to.put("descriptor", join({0}, whole));
  to.put("descriptor-fields", join({1}, ByteSpan(whole).subspan(12, whole.size() - 16)));
  const Incarnation incarnation{1, 2};
  Answer names;
  names.names = {"alpha", "weights"};
  Answer acquired;
  acquired.to = MessageType::kAcquire;
  acquired.descriptor = whole;
  Answer reaped;
  reaped.to = MessageType::kReap;
  reaped.reaped = {1, 2};
  Answer holders;
  holders.to = MessageType::kHolders;
  holders.holders.resize(2);
  const std::pair<const char*, std::pair<MessageBytes, int>> messages[] = {
      {"hello", {encode(Hello{kLedgerVersion, incarnation, 0}), 1}},
      {"welcome", {encode(Welcome{3, incarnation, 0, Capacities{}}), 4}},
      {"refused", {encode(Refused{ErrorCode::kLedgerFull, "why"}), 0}},
      {"error", {encode(Refused{ErrorCode::kBadArgument, "why"}, MessageType::kError), 0}},
      {"decline", {encode(Decline{7, 8}), 0}},
      {"row-half-full", {encode_row_half_full(), 0}},
      {"bye", {encode_bye(), 0}},
      {"forward", {encode(Forward{}), 0}},
      {"forwarded", {encode(Forwarded{}), 0}},
      {"timeline", {encode(AskTimelines{}), 0}},
      {"timelines", {encode(GivenTimelines{}), 3}},
      {"asked-in-vain", {encode(AskedInVain{}), 0}},
      {"take-back", {encode(TakeBack{}), 0}},
      {"heard", {encode(Heard{}), 0}},
      {"proves-less", {encode(ProvesLess{life_line::kLate}), 0}},
      {"publish-list", {encode(Question{MessageType::kPublishList, "", false, 3}), 0}},
      {"acquire", {encode(Question{MessageType::kAcquire, "weights", false, 0}), 0}},
      {"reap", {encode(Question{MessageType::kReap, "", true, 0}), 0}},
      {"holders", {encode(Question{MessageType::kHolders, "", false, 0}), 0}},
      {"answer-names", {encode(names), 0}},
      {"answer-acquire", {encode(acquired), 0}},
      {"answer-reap", {encode(reaped), 0}},
      {"answer-holders", {encode(holders), 0}},
  };
  for (const auto& [name, message] : messages) {
    const auto& [bytes, descriptors] = message;
    to.put(name, join({2, descriptors}, bytes));
    to.put(std::string(name) + "-fields", join({3, descriptors, std::to_integer<int>(bytes[0])},
                                               ByteSpan(bytes).subspan(kMessageHeaderBytes)));
  }
}

// Which message, how it is sealed, changes (field, way, ...).
void receive(const Folder& to) {
  constexpr const char* kNames[] = {"alive", "alive-2", "withdrawn", "expired", "over"};
  for (int message = 0; message < 10; ++message) {
    const std::string name = std::string(kNames[message % 5]) + (message < 5 ? "" : "-own");
    to.put(name, join({message, 1}));
    to.put(name + "-unsealed", join({message, 0}));
  }
  for (int field = 0; field < 24; ++field) {
    const std::string name = "field-" + std::to_string(field);
    to.put(name + "-edge", join({0, 1, field, 0, 0, 7}));
    to.put(name + "-other", join({field % 10, 1, field, 2, (field + 3) % 10}));
  }
}

// Actions: raw packet (0), typed message (1), hello (2), decline (3), row half full (4), bytes in
// the life line (5), closing it (6), a question (7), a new connection (8).
void channel(const Folder& to) {
  to.put("hello", join({2, 1, 0}));
  to.put("hello-twice", join({2, 1, 0, 2, 1, 0}));
  to.put("hello-flags", join({2, 1, 1, 5, 0, 0, 0}));
  to.put("hello-version", join({2, 1, 2, 9, 0, 0, 0}));
  to.put("hello-descriptors", join({2, 1, 4, 2, 0, 7}));
  to.put("messages", join({2, 1, 0, 3, 0, 4, 3, 1, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4}));
  to.put("decline-first", join({3, 0, 2, 1, 0, 3, 0}));
  to.put("every-type", join({1, 2, 1, 0, 0, 1, 3, 1, 0, 0, 1, 6,  1, 0, 0, 1, 7,  1, 0, 0,
                             1, 8, 1, 0, 0, 1, 9, 1, 0, 0, 1, 13, 1, 0, 0, 1, 15, 1, 0, 0}));
  to.put("raw", join({0, 3, 0, 1, 2, 3, 0, 0, 0, 0, 0}));
  to.put("life-line", join({2, 1, 0, 5, 3, 6, 4, 8, 1, 2, 1, 0}));
  to.put("left-without-bye", join({2, 1, 0, 8, 0, 2, 1, 0}));
  to.put("questions", join({7, 0, 0, 7, 0, 20, 7, 1, 0, 7, 1, 200, 7, 2, 0, 7, 2, 1, 7, 3, 0}));
  to.put("asked-after-hello", join({2, 1, 0, 7, 1, 0, 7, 3, 0, 6, 7, 2, 1}));
}

// Raw (0) or a welcome (1): lease, changes, capacities' changes, tables' changes.
void handshake(const Folder& to) {
  to.put("welcome", join({1, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  to.put("flags", join({1, 0, 0, 0, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0}));
  to.put("capacities", join({1, 0, 0, 0, 0, 0, 1, 33, 0, 0, 0, 0, 0, 0}));
  to.put("claims", join({1, 0, 0, 0, 0, 0, 16, 1, 0, 0, 0}));
  to.put("ledger", join({1, 0, 0, 0, 0, 0, 0, 0, 1, 255, 0}));
  to.put("unsealed", join({1, 0, 0, 0, 0, 0, 0, 32, 0, 0}));
  to.put("others-descriptors", join({1, 0, 0, 0, 0, 0, 0, 15, 0, 1, 2, 3}));
  to.put("one-missing", join({1, 0, 0, 0, 0, 0, 0, 16, 0, 0}));
  to.put("one-more", join({1, 0, 0, 0, 0, 0, 0, 128, 0, 0, 4}));
  const Bytes refused = encode(Refused{ErrorCode::kLedgerFull, "why"});
  to.put("refused", join({0, static_cast<int>(refused.size()), 0}, refused));
  to.put("raw", join({0, 3, 0, 1, 2, 3, 0}));
}

// Scans per second (of 3), then actions: share (0 size), again (1 which), free (2), claim (3),
// release (4), the owner (5), claim by the broken one (6), decline (7), storm (8), scribble (9: its
// timelines 5), sending on (10: by the honest one 0, taken back by the broken one 1, timelines asked for
// 2, opened by the owner 3, by the broken one 4).
void claim_rows(const Folder& to) {
  to.put("honest", join({2, 0, 1, 3, 0, 2, 0, 5, 0, 4, 0, 5, 0}));
  to.put("shared-twice", join({2, 0, 2, 1, 0, 3, 0, 3, 1, 2, 0, 4, 0, 5, 0, 4, 1, 5, 1}));
  to.put("both-claim", join({2, 0, 0, 6, 0, 0, 0, 3, 0, 2, 0, 6, 0, 0, 1, 5, 1}));
  to.put("scribbled-claims", join({2, 0, 0, 3, 0, 2, 0, 9, 1, 0, 0, 0, 2, 5, 0, 9, 1, 0, 0,
                                   0, 1, 5, 0, 9, 0, 4, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 1}));
  to.put("foreign-release", join({2, 0, 1, 3, 0, 2, 0, 9, 1, 0, 0, 0, 2, 5, 0, 5, 1}));
  to.put("dirty-words", join({2, 0, 1, 2, 0, 9, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0}));
  to.put("storm", join({0, 0, 1, 3, 0, 2, 0, 8, 4, 0, 5, 0, 5, 1, 8}));
  to.put("marks", join({2, 0, 2, 3, 0, 9, 6, 0, 4, 0, 2, 0, 5, 0, 5, 6}));
  to.put("decline", join({2, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 2, 0, 5, 0}));
  to.put("out-of-time", join({2, 0, 0, 2, 0, 5, 2, 1, 3, 0, 5, 0}));
  to.put("sent-on", join({2, 0,  1, 3, 0, 10, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1,
                          1, 10, 1, 1, 3, 1,  2, 0, 4, 0, 5, 0, 4, 1, 5, 1}));
  to.put("sent-on-by-both",
         join({2, 0,  0, 6, 0, 0, 0, 3, 0, 10, 4, 1, 0, 0, 2, 1, 0, 1, 1, 2, 3, 1, 3,
               1, 10, 0, 1, 0, 1, 2, 1, 2, 1,  1, 1, 2, 0, 5, 0, 5, 2, 1, 4, 1, 5, 1}));
  to.put("sent-on-by-a-word-alone",
         join({2, 0, 1, 9, 1, 0, 0, 0, 1, 10, 4, 1, 0, 0, 3, 1, 0, 1, 1, 4, 3, 1, 2, 0, 5, 1}));
  // What the broken one has sent on is over, the number that it names had come, and is set back while
  // the honest one sends on behind it.
  to.put("set-back", join({2, 0, 0, 6, 0, 0, 0, 10, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0,  3, 0,  0, 1,
                           1, 6, 0, 0, 1, 2, 0, 5,  2, 1, 5, 0, 0, 0, 3, 2, 9, 5,  0, 1,  1, 10,
                           0, 2, 0, 1, 0, 0, 0, 0,  1, 1, 0, 0, 0, 0, 1, 0, 1, 10, 2, 10, 3, 3}));
  to.put("withdrawn", join({2, 0, 0, 3, 0, 5, 7, 0, 6, 1, 0, 0, 4, 0, 5, 0}));
}

// Whether a tracker listens (1 of 4), then actions: allocate (0 size, stream; the streams are the
// default and two others of each device), free (5 which), free wrongly (8 how), record (9 stream,
// how, which, offset), hold a stream or release it (11 stream), capture or end (13 stream, mode),
// pin (14 how, which, offset), unpin (16 which), drain (17), another thread (18 how, which, stream),
// empty the cache (19 device), change a policy (20), a fault (21 kind, n-th), history (22), look (23),
// a checkpoint (24 take or go back, which), a pool (26 which, what).
void allocator(const Folder& to) {
  to.put("blocks", join({0, 0, 3, 0, 0, 4, 1, 0, 8, 1, 5, 1, 0, 3, 0, 5, 0, 5, 0, 5, 0, 19, 0}));
  to.put("sizes", join({0, 0, 0,  0, 0, 5,  0, 0, 6, 0, 0, 7, 0, 0, 8,  1, 0,  9,
                        1, 0, 10, 3, 0, 11, 4, 5, 2, 0, 7, 0, 5, 0, 19, 0, 19, 1}));
  to.put("wrong-frees", join({0, 0, 3, 0, 8, 0, 0, 8, 1, 0, 8, 2, 0, 7, 0, 0, 0, 5, 0}));
  to.put("waiting-and-reuse",
         join({0, 0, 8, 1, 11, 2, 9, 2, 2, 0, 1, 0, 0, 0, 5, 0, 8, 3, 0, 0, 8, 1, 11, 2, 0, 8, 1}));
  to.put("waiting-at-empty-cache",
         join({0, 0, 8, 1, 11, 2, 9, 2, 2, 0, 1, 0, 0, 0, 5, 0, 19, 0, 0, 8, 1}));
  to.put("limbo", join({0, 0, 8, 0, 14, 2, 0, 9, 0, 0, 0, 5, 0, 8, 3, 0, 0, 8, 0, 16, 0, 17}));
  to.put("limbo-recorded", join({0, 0, 8, 1, 14, 2, 0, 9,  0, 0,  0, 5, 0, 11, 2, 9,
                                 2, 1, 0, 1, 0,  0, 0, 16, 0, 17, 0, 8, 1, 11, 2}));
  to.put("pinned-often", join({0, 0, 3, 0,  14, 2,  0,  0, 0,  0, 0, 14, 0, 0, 14, 0,
                               0, 5, 0, 16, 0,  17, 16, 0, 14, 1, 0, 16, 0, 0, 3,  0}));
  to.put("captured", join({0, 0, 8, 1, 13, 2,  0, 9,  2, 2, 0, 1, 0, 0,  0,
                           5, 0, 0, 8, 1,  19, 0, 13, 2, 0, 0, 9, 1, 19, 0}));
  to.put("captured-home", join({0, 13, 1, 1, 0, 8, 1, 5, 0, 0, 8, 1, 13, 1, 5, 0}));
  to.put("out-of-memory", join({0,  0, 12, 0, 0, 12, 1, 0,  12, 0, 0, 12, 1, 0,
                                13, 0, 5,  1, 0, 12, 1, 20, 3,  0, 0, 12, 0}));
  to.put("policies", join({0,  20, 0, 1, 1, 2,  0, 12, 0, 5, 0, 0,  11, 0, 0,  12, 0,
                           20, 1,  0, 3, 0, 12, 0, 20, 1, 0, 0, 20, 2,  3, 19, 0}));
  to.put("faults", join({0, 21, 0, 0,  0, 8, 0, 21, 1, 0, 0, 12, 0, 5, 0, 21, 2, 0,  19, 0,
                         0, 9,  0, 21, 3, 0, 9, 2,  2, 0, 1, 0,  0, 0, 5, 0,  0, 12, 0}));
  to.put("history", join({0, 22, 1, 9, 3, 1, 0,  0, 3,  0, 0, 8, 0, 5, 0, 22, 1,
                          2, 1,  0, 4, 5, 0, 19, 0, 22, 0, 0, 0, 0, 0, 0, 3,  0}));
  to.put("tracked", join({1, 0, 3, 0, 0, 12, 0, 0, 12, 4, 5, 1, 19, 0, 0, 13, 0, 18, 0, 0, 0}));
  to.put("threads", join({0, 0, 3, 1, 18, 0, 0, 1, 18, 1, 0, 1, 0, 4, 1, 18, 2, 0, 4, 23, 0}));
  to.put("numbers", join({0, 0, 8, 0, 23, 0, 23, 1, 0, 23, 2, 1, 23, 3, 0, 9, 0, 0, 0, 5, 0}));
  to.put("pool", join({0, 26, 0, 0, 26, 0, 2, 1, 0,  8, 0, 0,  3, 1, 26, 0,
                       4, 0,  8, 0, 19, 1, 5, 0, 26, 0, 1, 26, 0, 7, 19, 0}));
  to.put("pool-of-a-provider", join({0, 26, 1, 0, 26, 1, 2, 1, 0,  11, 0, 26, 1, 4, 14,
                                     2, 0,  0, 0, 0,  0, 5, 0, 26, 1,  1, 26, 1, 7}));
  to.put("pool-in-need", join({1, 26, 0, 2, 1, 0, 12, 0, 0, 12, 0,  26, 0, 0,  26, 0,
                               4, 26, 0, 5, 0, 5, 0,  5, 0, 0,  12, 0,  0, 12, 0}));
  to.put("pools-nested", join({0, 26, 0, 2, 1, 26, 1, 2,  0, 0,  0, 8, 1,  26, 0, 6,  0, 8,
                               1, 26, 1, 4, 0, 8,  1, 19, 1, 26, 0, 4, 26, 2,  6, 26, 3, 1}));
  to.put("pool-of-a-captured-stream", join({0, 26, 0, 2, 0, 1, 13, 1, 0,  0, 8, 1,  9, 2, 2,  0, 1,
                                            0, 0,  0, 5, 0, 0, 8,  1, 13, 1, 0, 26, 0, 4, 19, 0}));
  to.put("checkpoints", join({0,  26, 0, 0,  26, 0, 2, 1,  0,  3, 0,  0,  8, 0, 24, 0,  0, 0,
                              3,  0,  0, 4,  0,  5, 1, 24, 0,  0, 24, 1,  0, 5, 0,  24, 1, 1,
                              26, 0,  4, 24, 1,  0, 5, 0,  26, 0, 1,  24, 1, 0, 24, 0,  0}));
  to.put("checkpoint-over-use",
         join({0, 26, 0, 0, 26, 0,  2, 1, 0, 8, 1,  24, 0, 0,  11, 2,  9, 2, 2,
               0, 1,  0, 0, 0,  24, 1, 0, 5, 0, 24, 1,  0, 11, 2,  24, 1, 0}));
}

}  // namespace
}  // namespace limbo

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "limbo_fuzz_seeds FOLDER\n");
    return 2;
  }
  try {
    const std::filesystem::path folder = argv[1];
    limbo::decoders(limbo::Folder(folder / "decoders"));
    limbo::receive(limbo::Folder(folder / "receive"));
    limbo::channel(limbo::Folder(folder / "channel"));
    limbo::handshake(limbo::Folder(folder / "handshake"));
    limbo::claim_rows(limbo::Folder(folder / "claim_rows"));
    limbo::allocator(limbo::Folder(folder / "allocator"));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}
