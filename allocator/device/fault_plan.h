// Counts the calls of a simulated device by kind, and makes chosen ones go wrong.
//
// A plan in text, as LIMBO_SIM_FAULTS takes it: `KIND:N=ACTION`, joined by commas. KIND is a name
// of call_kind_name; N the n-th call of that kind from then on, or `*` for every one; ACTION is one
// of
//   fail         the call throws kDeviceError and changes nothing
//   full         try_allocate returns null, as on a device without room (allocate only)
//   slow:MS      the call takes MS milliseconds longer
//   hang         the call does not come back until release_hangs()
//   kill         the process kills itself (SIGKILL) at the start of the call
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace limbo {

enum class CallKind : std::uint8_t {
  kMemoryInfo,
  kAllocate,
  kFree,
  kExport,
  kOpen,
  kClose,
  kStreamId,
  kCreateStream,
  kDestroyStream,
  kIsCapturing,
  kKeepInGraph,
  kSynchronize,
  kCreateEvent,
  kDestroyEvent,
  kRecordEvent,
  kQueryEvent,
  kWaitEvent,
  kRegister,
  kUnregister,
  kWriteWords,
  kWaitWord,
  kFill,
  kCopy,
  kKernel,
};
inline constexpr std::size_t kCallKinds = static_cast<std::size_t>(CallKind::kKernel) + 1;

// "allocate", "open_memory", ...: the names of the interface's functions.
[[nodiscard]] std::string_view call_kind_name(CallKind kind) noexcept;

struct Fault {
  enum class Action : std::uint8_t { kFail, kFull, kSlow, kHang, kKill };
  CallKind kind = CallKind::kAllocate;
  std::uint64_t nth = 1;  // the n-th call from now on; 0: every call
  Action action = Action::kFail;
  std::chrono::milliseconds delay{0};  // of kSlow
};

// Thread-safe.
class FaultPlan {
 public:
  void add(const Fault& fault);
  // Throws kBadArgument that names the part that is wrong; then nothing was added.
  void add(std::string_view text);
  // Faults not yet met are dropped and hanging calls come back.
  void clear();

  // Counts a call and does what the plan says. Returns true where try_allocate is to return null.
  // Throws kDeviceError.
  bool on_call(CallKind kind);

  // Calls since the start, or since the last reset.
  [[nodiscard]] std::uint64_t calls(CallKind kind);
  void reset_calls();

  // Calls that hang at this moment; a test waits for them with wait_for_hanging.
  [[nodiscard]] int hanging();
  [[nodiscard]] bool wait_for_hanging(int count, std::chrono::milliseconds at_most);
  void release_hangs();

 private:
  struct Planned {
    Fault fault;
    std::uint64_t at = 0;  // value of seen_ at which it strikes; 0: always
  };

  std::mutex mutex_;  // guards all below; nobody sleeps under it but on changed_
  std::condition_variable changed_;
  std::vector<Planned> planned_;
  std::array<std::uint64_t, kCallKinds> seen_{};      // never reset
  std::array<std::uint64_t, kCallKinds> reset_at_{};  // seen_ at the last reset
  int hanging_ = 0;
  std::uint64_t releases_ = 0;
};

}  // namespace limbo
