// receive() of forged descriptors, against a real producer in another process and in this one.
//
// The input chooses a descriptor that was right once and is so still, or is not any more (withdrawn,
// out of time, over), changes fields and bytes of it, and makes frame and checksum right again.
// Either a documented error comes and nothing is held, or the block is the one that the export
// names, with that block's bytes. Now and then the producers are asked: nothing is held or promised
// more than before, no lease has come about, every invariant holds.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "allocator/device/device.h"
#include "allocator/error.h"
#include "ipc/checksum.h"
#include "ipc/descriptor.h"
#include "ipc/incarnation.h"
#include "tests/fuzz/receive_target.h"
#include "tests/fuzz/target.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"

namespace limbo::fuzz::receive {
namespace {

using testing::ChildContext;
using testing::ChildProcess;
using testing::eventually;
using testing::from_hex;

constexpr std::size_t kBlockBytes = 4096;
constexpr std::size_t kMostChanges = 8;
constexpr std::size_t kInputsBetweenLooks = 2000;

// The two blocks that stay alive hold these words; a third once held the last.
constexpr std::uint32_t kWords[] = {0x1111'1111, 0x2222'2222, 0x3333'3333};

void* make_block(std::uint32_t word) {
  void* data = process_allocator().allocate(kBlockBytes, {});
  process_device().fill({}, data, word, kBlockBytes / 4);
  return data;
}

// Messages of this process: two alive, of different blocks; withdrawn; out of time; over.
std::vector<Bytes> make_messages() {
  Sharing& sharing = process_sharing();
  std::vector<Bytes> made;
  const auto share = [&](void* data, const ShareOptions& options) {
    made.push_back(sharing.share(data, kBlockBytes, options, {}));
    return made.back();
  };
  share(make_block(kWords[0]), {});
  share(make_block(kWords[1]), {});
  void* data = make_block(kWords[2]);
  sharing.withdraw(share(data, {}));
  process_allocator().free(data);
  data = make_block(kWords[2]);
  ShareOptions at_once;
  at_once.time_limit = std::chrono::milliseconds(0);
  share(data, at_once);
  process_allocator().free(data);
  require(eventually([&] { return sharing.stats().expired == 1; }), "time limits pass");
  data = make_block(kWords[2]);
  const Bytes opened = share(data, {});
  (void)sharing.receive(opened, {});
  process_allocator().free(data);
  require(eventually([&] {
            (void)sharing.collect();
            return sharing.stats().exports_open == 2;
          }),
          "what is over is closed");
  return made;
}

// What a producer has when nothing is held: "exports in_flight held leases".
std::string state() {
  const SharingStats stats = process_sharing().stats();
  std::ostringstream out;
  out << stats.exports_open << ' ' << stats.in_flight << ' ' << stats.held_claims << ' '
      << stats.leases_connected;
  return out.str();
}

// The other process: sends its messages, then answers each line by its state.
LIMBO_CHILD_ROLE(fuzz_producer) {
  ::alarm(0);  // lives as long as its parent
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const Bytes& message : make_messages()) child.send_bytes(message);
  while (child.try_receive()) {
    (void)process_sharing().collect();
    process_allocator().check_invariants();
    child.send(state());
  }
  return 0;
}

// One for all inputs.
class World {
 public:
  World() {
    ::setenv("LIMBO_EXIT_DRAIN_MS", "0", 1);  // nobody opens what this process has sent
    child_ = new ChildProcess("fuzz_producer");
    for (std::size_t i = 0; i < 5; ++i) messages_.push_back(child_->receive_bytes());
    for (Bytes& message : make_messages()) messages_.push_back(std::move(message));
    // Opened once, so that nothing is promised any more.
    for (const std::size_t alive : {0U, 1U, 5U, 6U}) {
      (void)process_sharing().receive(messages_[alive], {});
    }
  }
  [[nodiscard]] const Bytes& message(std::size_t index) const {
    return messages_[index % messages_.size()];
  }
  // Two exports that stay open, with nothing promised; one lease in the other process, none here.
  void check() {
    std::string theirs;
    const bool balanced = eventually(
        [&] {
          child_->send("look");
          theirs = child_->receive();
          (void)process_sharing().collect();
          return theirs == "2 0 0 1" && state() == "2 0 0 0";
        },
        std::chrono::seconds(5));
    require(balanced,
            "forged descriptors leave nothing behind: there " + theirs + ", here " + state());
    process_allocator().check_invariants();
  }

 private:
  ChildProcess* child_ = nullptr;
  std::vector<Bytes> messages_;
};

World& world() {
  static World& made = *new World;
  return made;
}

// Where the fields of fixed width lie, and how wide they are.
struct Field {
  std::size_t at;
  std::size_t bytes;
};
constexpr std::array<Field, 24> kFields = {{
    {0, 4},   {4, 4},   {8, 4},             // magic, version, length
    {12, 8},  {20, 8},  {28, 8},  {36, 8},  // incarnation, boot
    {44, 8},  {52, 8},                      // device
    {60, 4},  {64, 8},                      // export
    {72, 4},  {76, 8},  {84, 8},  {92, 4},  // piece: index, generation, size; count
    {96, 8},  {104, 8},                     // offset, size
    {112, 4}, {116, 4}, {120, 8},           // first point
    {128, 4}, {132, 4}, {136, 8},           // second point
    {144, 2},                               // length of the directory
}};

std::uint64_t value(Input& input) {
  constexpr std::uint64_t kEdges[] = {0,           1,          2,          0x7fff'ffff,
                                      0xffff'ffff, 1ULL << 38, 1ULL << 63, ~0ULL};
  return input.below(2) == 0 ? kEdges[input.below(std::size(kEdges))]
                             : input.number<std::uint64_t>();
}

void put(Bytes& bytes, const Field& field, std::uint64_t number) {
  for (std::size_t byte = 0; byte < field.bytes && field.at + byte < bytes.size(); ++byte) {
    bytes[field.at + byte] = static_cast<std::byte>(number >> (8 * byte));
  }
}

std::uint64_t get(const Bytes& bytes, const Field& field) {
  std::uint64_t number = 0;
  for (std::size_t byte = 0; byte < field.bytes && field.at + byte < bytes.size(); ++byte) {
    number |= std::to_integer<std::uint64_t>(bytes[field.at + byte]) << (8 * byte);
  }
  return number;
}

void change(Bytes& bytes, Input& input) {
  const Field field = kFields[input.below(kFields.size())];
  switch (input.below(6)) {
    case 0:
      return put(bytes, field, value(input));
    case 1:
      return put(bytes, field, get(bytes, field) + 1 + input.below(3) * (1ULL << 60));
    case 2:  // another message's field
      return put(bytes, field, get(world().message(input.number()), field));
    case 3:
      if (!bytes.empty()) bytes[input.number<std::uint16_t>() % bytes.size()] ^= std::byte{1};
      return;
    case 4:
      bytes.resize(input.number<std::uint16_t>() % (bytes.size() + 1));
      return;
    default: {
      const ByteSpan more = input.bytes(input.number());
      bytes.insert(bytes.end() - static_cast<std::ptrdiff_t>(bytes.size() % (1 + input.below(64))),
                   more.begin(), more.end());
    }
  }
}

// Length and checksum as they must be.
Bytes sealed(Bytes bytes) {
  put(bytes, {8, 4}, bytes.size() + 4);
  FieldWriter out;
  out.raw(bytes);
  out.number(crc32c(out.view()));
  return out.take();
}

bool documented(ErrorCode code) {
  switch (code) {
    case ErrorCode::kBadDescriptor:
    case ErrorCode::kGone:
    case ErrorCode::kWithdrawn:
    case ErrorCode::kExpired:
    case ErrorCode::kProducerExited:
    case ErrorCode::kDeviceNotVisible:
    case ErrorCode::kNoChannel:
    case ErrorCode::kLedgerFull:
    case ErrorCode::kDeviceError:
      return true;
    default:
      return false;
  }
}

void check_block(const Received& received) {
  require(received.block->size_bytes() == kBlockBytes, "a block has its export's size");
  std::uint32_t word = 0;
  process_device().copy_to_host({received.block->device(), nullptr}, &word, received.block->data(),
                                sizeof(word));
  require(word == kWords[0] || word == kWords[1], "a block that is received is alive");
}

LIMBO_FUZZ_TARGET(receive) {
  Input input(bytes);
  Bytes forged = world().message(input.number());
  const std::uint8_t how = input.number();
  forged.resize(forged.size() - 4);  // without checksum
  for (std::size_t i = 0; i < kMostChanges && input.left() > 0; ++i) change(forged, input);
  if (how % 8 != 0) forged = sealed(std::move(forged));
  ReceiveOptions options;
  if (how >= 240) options.device = 0;
  try {
    check_block(process_sharing().receive(forged, options));
  } catch (const Error& refused) {
    require(documented(refused.code()),
            std::string("receive fails in a documented way: ") + refused.what());
  }
  static std::size_t inputs = 0;
  if (++inputs % kInputsBetweenLooks == 0) world().check();
}

}  // namespace

}  // namespace limbo::fuzz::receive

void limbo::fuzz::check_receive_balance() {
  receive::world().check();
}
