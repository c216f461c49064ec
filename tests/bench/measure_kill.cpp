// From a consumer's SIGKILL until the memory that it held is free in its owner, who does nothing for
// it but look.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "ipc/owned_fd.h"
#include "tests/bench/benchmarks.h"
#include "tests/bench/lent.h"
#include "tests/bench/process.h"
#include "tests/support/eventually.h"

namespace limbo::bench {
namespace {

constexpr std::int64_t kReturnBudgetNs = 200'000'000;
constexpr std::size_t kBlockBytes = std::size_t{64} << 20;
constexpr std::size_t kReadersAtOnce = 4;  // each needs a second or so to get its GPU
constexpr std::chrono::seconds kReturnPatience{30};
// How often the owner looks: the error of every time here.
constexpr std::chrono::microseconds kLook{100};

struct Returned {
  std::int64_t gone_ns = 0;  // the process has ended: on a GPU its driver has torn down by then
  std::int64_t back_ns = 0;  // the block is free
};

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

Returned kill_and_wait(Reader& reader) {
  const OwnedFd pidfd{static_cast<int>(::syscall(SYS_pidfd_open, reader.pid(), 0U))};
  if (!pidfd.valid()) throw std::runtime_error("pidfd_open is refused");
  Returned returned;
  const auto killed = Clock::now();
  reader.kill_unreaped();
  while (returned.gone_ns == 0 || returned.back_ns == 0) {
    if (returned.gone_ns == 0 && readable(pidfd.get())) returned.gone_ns = ns_since(killed);
    if (returned.back_ns == 0 && allocator().stats(0).limbo_blocks == 0) {
      returned.back_ns = ns_since(killed);
    }
    if (Clock::now() > killed + kReturnPatience) {
      throw std::runtime_error("a killed consumer's memory does not come back");
    }
    std::this_thread::sleep_for(kLook);
  }
  return returned;
}

Returned round(Reader& reader, BusyStream& stream, std::chrono::milliseconds kernel) {
  {
    LentBlocks block(1, kBlockBytes, stream.ref());
    (void)block.share_all();
    block.give_all(reader);
    (void)reader.receive();
    if (kernel.count() > 0) reader.write(kernel);
  }
  if (!testing::eventually([] { return allocator().stats(0).limbo_blocks == 1; })) {
    throw std::runtime_error("the lent block is not in limbo");
  }
  return kill_and_wait(reader);
}

Measurements kill_rounds(const std::string& name, const std::string& what,
                         std::chrono::milliseconds kernel, const Scale& scale) {
  Measurement total{.name = name, .what = what + ": from the kill until its memory is free"};
  Measurement after{.name = name + "-after-end",
                    .what = "the same, from the end of its process",
                    .budget_ns = kReturnBudgetNs};
  BusyStream stream;
  const std::size_t rounds = scale.either<std::size_t>(20, 2);
  for (std::size_t done = 0; done < rounds;) {
    std::vector<std::unique_ptr<Reader>> readers(std::min(kReadersAtOnce, rounds - done));
    for (auto& reader : readers) reader = std::make_unique<Reader>();
    for (auto& reader : readers) {
      const Returned returned = round(*reader, stream, kernel);
      total.samples.add(returned.back_ns);
      after.samples.add(std::max<std::int64_t>(0, returned.back_ns - returned.gone_ns));
      ++done;
    }
  }
  wait_until_all_is_back();
  return {total, after};
}

}  // namespace

Measurements measure_kill(const Scale& scale) {
  Measurements all = kill_rounds("kill-idle", "killed while it holds 64 MiB", {}, scale);
  for (Measurement& more : kill_rounds("kill-kernel", "killed while its kernel writes 64 MiB",
                                       std::chrono::milliseconds(2'000), scale)) {
    all.push_back(std::move(more));
  }
  return all;
}

}  // namespace limbo::bench
