// One thread's random acting: reading, and in a producer lending.
#pragma once

#include <memory>

#include "allocator/allocator.h"
#include "tests/tools/killmatrix/arena.h"
#include "tests/tools/killmatrix/gpu_work.h"
#include "tests/tools/killmatrix/lender.h"
#include "tests/tools/killmatrix/mail.h"
#include "tests/tools/killmatrix/plan.h"
#include "tests/tools/killmatrix/random.h"
#include "tests/tools/killmatrix/reader.h"

namespace limbo::killmatrix {

// Calls `function`, and reports what Limbo may not say to a program that does nothing wrong.
template <typename Function>
void attempt(Diary& diary, Function&& function) {
  try {
    function();
  } catch (const OutOfMemory&) {
    diary.arena().out_of_memory.fetch_add(1);
    diary.line("out of memory");
  } catch (const Error& failure) {
    diary.line("error: %.100s", failure.what());
    if (diary.context_lost()) return;
    if (is_planned(failure, diary) || failure.code() == ErrorCode::kLedgerFull) return;
    diary.found(Harm::kOther, "an error that has no reason: %s", failure.what());
  } catch (const std::exception& failure) {
    diary.found(Harm::kOther, "an exception: %s", failure.what());
  }
}

class Actor {
 public:
  Actor(Diary& diary, Post& post, Device& device, const Plan& plan, std::uint64_t seed,
        std::uint32_t slots);

  // One random action. False: there was nothing to do, or others should have their turn.
  bool act();

  void give_back();  // what was received, and what was allocated
  void take_back();  // the messages that nobody has opened
  [[nodiscard]] Reader& reader() noexcept { return reader_; }
  [[nodiscard]] GpuWork& work() noexcept { return work_; }

 private:
  Diary& diary_;
  Random random_;
  GpuWork work_;
  Reader reader_;
  std::unique_ptr<Lender> lender_;  // of a producer
};

}  // namespace limbo::killmatrix
