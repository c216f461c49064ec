// Tables and descriptors that run out between processes: a clear error, and then everything works.
#include <sys/resource.h>

#include "tests/processes/sharing_support.h"

namespace limbo::testing {
namespace {

// What a peer answers with, code and text; "none" when it answers well.
template <typename Function>
std::string refusal_of(Function&& function) {
  try {
    function();
    return "none";
  } catch (const PeerError& failure) {
    return failure.what();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// While it lives the process opens nothing more; what is open stays so.
class WithoutDescriptors {
 public:
  explicit WithoutDescriptors(Peer& peer) : pid_(peer.process().pid()) {
    struct rlimit none {};
    EXPECT_EQ(::prlimit(pid_, RLIMIT_NOFILE, nullptr, &before_), 0);
    none = before_;
    none.rlim_cur = 3;
    EXPECT_EQ(::prlimit(pid_, RLIMIT_NOFILE, &none, nullptr), 0);
  }
  ~WithoutDescriptors() { EXPECT_EQ(::prlimit(pid_, RLIMIT_NOFILE, &before_, nullptr), 0); }
  WithoutDescriptors(const WithoutDescriptors&) = delete;
  WithoutDescriptors& operator=(const WithoutDescriptors&) = delete;

 private:
  const pid_t pid_;
  struct rlimit before_ {};
};

class FullTablesTest : public SharingTest {};

TEST_F(FullTablesTest, OneExportAndOnePieceServeMessagesOneAfterAnother) {
  Peer small(with({{"LIMBO_LEDGER_EXPORTS", "1"}, {"LIMBO_LEDGER_PIECES", "1"}}));
  small.allocate("b", kMiB, 1);
  for (int round = 0; round < 10; ++round) {
    const std::string message = small.share("b");
    EXPECT_TRUE(contains(refusal_of([&] { (void)small.share("b"); }), "ledger_exports"));
    reader_.receive("r", message);
    EXPECT_TRUE(reader_.holds("r", 1));
    EXPECT_TRUE(contains(refusal_of([&] { (void)small.share("b"); }), "ledger_full"));
    reader_.drop("r");
    EXPECT_TRUE(small.becomes("held_claims", 0));
  }
  small.allocate("other", 32 * kMiB, 2);
  EXPECT_TRUE(contains(refusal_of([&] { (void)small.share("other"); }), "ledger_pieces"));
  small.free("b");
  EXPECT_TRUE(eventually([&] {  // the reader unmaps, and the memory goes back
    small.empty_cache();
    return refusal_of([&] { reader_.receive("r", small.share("other")); }) == "none";
  }));
  EXPECT_TRUE(reader_.holds("r", 2));
  reader_.drop("r");
  small.free("other");
  EXPECT_TRUE(small.becomes("limbo", 0));
}

// All slots of a row are released behind a kernel: for a short one the next message waits; for a
// long one it is declined, so that its sender does not wait for it either.
TEST_F(FullTablesTest, ARowFullOfReleasesIsWaitedForAndThenDeclined) {
  Peer small(with({{"LIMBO_LEDGER_CLAIMS", "512"}}));
  small.allocate("b", kMiB, 1);
  // What one more message meets behind releases that wait for a kernel of this duration.
  const auto one_more_behind = [&](std::chrono::milliseconds kernel) {
    std::string messages;
    for (int index = 0; index < 512; ++index) messages += " " + small.share("b");
    reader_.call("receive_many r" + messages);
    reader_.write_for("r0", 1, kernel);
    reader_.call("repeat 512 drop r%");
    std::string text = refusal_of([&] { reader_.receive("more", small.share("b")); });
    if (text == "none") {
      EXPECT_TRUE(reader_.holds("more", 1));
      reader_.drop("more");
    } else {
      EXPECT_TRUE(contains(text, "ledger_claims")) << text;
    }
    EXPECT_TRUE(small.becomes("in_flight", 0));
    EXPECT_TRUE(reader_.becomes("releases_pending", 0));
    EXPECT_TRUE(small.becomes("held_claims", 0));
    return text;
  };
  // On a busy machine a short kernel may be a long one, and a long one over before the message comes.
  using std::chrono::milliseconds;
  EXPECT_TRUE(eventually([&] { return one_more_behind(milliseconds(20)) == "none"; }));
  bool declined = false;
  for (milliseconds kernel(1500); !declined && kernel < milliseconds(30'000); kernel *= 4) {
    declined = one_more_behind(kernel) != "none";
  }
  EXPECT_TRUE(declined);
  reader_.receive("r", small.share("b"));
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  small.free("b");
  EXPECT_TRUE(small.becomes("limbo", 0));
}

TEST_F(FullTablesTest, ASenderWithoutDescriptorsServesWhomItKnows) {
  sender_.allocate("b", kMiB, 1);
  reader_.receive("r", sender_.share("b"));
  Peer other;
  (void)other.device_name();
  {
    const WithoutDescriptors limit(sender_);
    const std::string message = sender_.share("b");
    EXPECT_EQ(error_of([&] { other.receive("r", message); }), "no_channel");
    sender_.withdraw(message);
    reader_.receive("s", sender_.share("b"));
    EXPECT_TRUE(reader_.holds("s", 1));
  }
  // It listens again as soon as it can.
  EXPECT_TRUE(eventually([&] {
    const std::string message = sender_.share("b");
    if (error_of([&] { other.receive("r", message); }) == "none") return true;
    sender_.withdraw(message);
    return false;
  }));
  EXPECT_TRUE(other.holds("r", 1));
  other.drop("r");
  for (const char* name : {"r", "s"}) reader_.drop(name);
  sender_.free("b");
  expect_all_back();
}

TEST_F(FullTablesTest, AReaderWithoutDescriptorsIsTold) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer needs descriptors of its own";
#endif
  sender_.allocate("b", kMiB, 1);
  const std::string message = sender_.share("b");
  (void)reader_.device_name();
  {
    const WithoutDescriptors limit(reader_);
    const std::string text = refusal_of([&] { reader_.receive("r", message); });
    EXPECT_TRUE(contains(text, "no_channel")) << text;
    EXPECT_TRUE(contains(text, "Too many open files")) << text;
  }
  reader_.receive("r", message);
  EXPECT_TRUE(reader_.holds("r", 1));
  reader_.drop("r");
  sender_.free("b");
  expect_all_back();
}

}  // namespace
}  // namespace limbo::testing
