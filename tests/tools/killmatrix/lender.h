// A producer's part: allocates, writes, sends, takes back, frees, and looks after its own blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/allocator.h"
#include "ipc/sharing.h"
#include "tests/tools/killmatrix/arena.h"
#include "tests/tools/killmatrix/gpu_work.h"
#include "tests/tools/killmatrix/mail.h"
#include "tests/tools/killmatrix/names.h"
#include "tests/tools/killmatrix/plan.h"
#include "tests/tools/killmatrix/random.h"

namespace limbo::killmatrix {

class Lender {
 public:
  // `slots`: how many processes there are, so that every one of them may get mail.
  Lender(Diary& diary, Post& post, GpuWork& work, Random& random, std::uint32_t slots,
         const Plan& plan);

  // One random action. Throws what Limbo throws.
  void act();

  void free_all();
  void withdraw_all();  // what was sent and may not have been opened

 private:
  struct Own {
    void* data = nullptr;
    std::size_t size_bytes = 0;
    StreamHandle home = nullptr;
    StreamHandle last = nullptr;  // has seen all that was done with it
    std::uint32_t canary = 0;
    bool sent = false;
  };

  void allocate() { allocate_on(work_.stream(random_.below(GpuWork::kStreams))); }
  void allocate_on(StreamHandle home);
  void publish();
  void send();
  void check(Own& own);
  void free(std::size_t index);
  void withdraw();
  void look();  // collect, empty_cache, and what people ask for
  std::uint32_t another_slot();

  Diary& diary_;
  Post& post_;
  GpuWork& work_;
  Random& random_;
  const std::uint32_t slots_;
  const bool sends_twice_;
  const std::uint32_t slow_writes_one_in_;
  const std::uint32_t slow_writes_ms_;
  Publisher publisher_;
  std::vector<Own> own_;
  std::vector<Bytes> withdrawable_;
  std::vector<Bytes> sent_;
  bool several_promises_ = true;
};

}  // namespace limbo::killmatrix
