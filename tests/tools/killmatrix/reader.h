// A consumer's part: receives, compares, writes, names streams, gives back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "ipc/sharing.h"
#include "tests/tools/killmatrix/arena.h"
#include "tests/tools/killmatrix/gpu_work.h"
#include "tests/tools/killmatrix/mail.h"
#include "tests/tools/killmatrix/random.h"

namespace limbo::killmatrix {

// An error that a fail point was told to throw, which is counted.
[[nodiscard]] bool is_planned(const Error& failure, const Diary& diary);

class Reader {
 public:
  // `slots`: how many processes there are, so that every one of them may get what is sent on.
  // `captures`: streams are captured now and then; not where another thread may send on what came
  // by one of them.
  Reader(Diary& diary, Post& post, GpuWork& work, Random& random, std::uint32_t slots,
         bool captures);

  // One random action. False: there was nothing to do.
  bool act();

  // Opens what was sent on, which nobody withdraws. Ends with a receive that fails, of the mail that was put by: nothing comes behind it any more.
  void release_all();
  // Kernels that go on for so long write every block that is this process's to write. False: there
  // is none.
  bool write_long(std::chrono::milliseconds duration);

 private:
  struct Held {
    std::unique_ptr<ReceivedBlock> block;
    Letter letter;
    std::uint32_t expected = 0;  // 0: nobody promises what it holds
    bool verified = false;       // it held that once
    // Written by a kernel that repeats its number: what arrives of a dead one's shows no end of it, so
    // it is not sent on.
    bool repeats = false;
    StreamHandle last = nullptr;
  };

  [[nodiscard]] std::optional<Mail> take();
  bool receive();
  bool acquire();
  void open(const Mail& mail);
  // A claim that stands, and is given back by the host, since there is no such device.
  void receive_in_vain(const Mail& mail);
  // Opens one message so often that its releases wait for one another behind a kernel.
  void flood(const Mail& mail);
  void refused(const Letter& letter, std::uint64_t asked_us, const Error& failure);
  [[nodiscard]] bool may_be_refused(const Letter& letter, std::uint64_t asked_us,
                                    ErrorCode code) const;
  void check(Held& held);
  // Whether its owner, or who has sent it on, ends now or soon.
  [[nodiscard]] bool sender_ends_soon(const Letter& letter) const;
  void write(Held& held, std::chrono::milliseconds duration);
  void change_stream(Held& held);
  void send_on(std::size_t index);
  void withdraw();
  void release(std::size_t index);
  void release_in_capture(std::size_t index);
  void release_behind_a_stream_that_went(std::size_t index);

  Diary& diary_;
  Post& post_;
  GpuWork& work_;
  Random& random_;
  const std::uint32_t slots_;
  const bool captures_;
  std::vector<Held> held_;
  std::optional<Mail> put_by_;
  std::vector<Bytes> sent_on_;  // what may be taken back
};

}  // namespace limbo::killmatrix
