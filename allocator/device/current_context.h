// Which GPU's context is current in the calling thread, asked on every allocation where several GPUs
// are visible, and so asked as cheaply as the driver lets it.
#pragma once

#include <atomic>
#include <cstdint>

namespace limbo {

// The number of the GPU whose context is current in the calling thread; -1 where none is current, or
// there is no driver. Makes nothing.
[[nodiscard]] int current_context_device() noexcept;

// Whether every visible GPU has its primary context, so that there is none to be made any more. False
// where the driver does not say.
[[nodiscard]] bool every_device_has_context() noexcept;

// What is known of the calling thread, in plain words (initial-exec): the layer above has some here,
// because only a library whose thread-local data are few can have such, as the loader has little room
// for them.
struct ThreadWordsOfContext {
  // The primary context that was current at the last look, and its GPU. A primary context is kept
  // for good once it is known here, so that its handle names its GPU for good.
  void* context = nullptr;
  int device = -1;

  // The layer above (hooks/current_stream.h): the thread was given a context where it had none; c10
  // can have promised nothing that is not current yet; calls until that is looked into again.
  bool context_was_seen_to = false;
  bool nothing_is_promised = false;
  std::uint16_t calls_until_look = 1;
};
extern thread_local constinit ThreadWordsOfContext words_of_context
    __attribute__((tls_model("initial-exec")));

// ---- behind current_context_device --------------------------------------------------------------

namespace current_context_detail {

// The driver's cuCtxGetCurrent, its types left out as its header is included nowhere but in this
// folder: a result that is 0 for success, a context. Until it is known: a function that fails.
using GetCurrent = int (*)(void** context);
extern constinit std::atomic<GetCurrent> get_current;

[[nodiscard]] int look_up() noexcept;

}  // namespace current_context_detail

inline int current_context_device() noexcept {
  using namespace current_context_detail;
  void* context = nullptr;
  const ThreadWordsOfContext& known = words_of_context;
  if (get_current.load(std::memory_order_relaxed)(&context) == 0 && context == known.context &&
      context != nullptr) [[likely]] {
    return known.device;
  }
  return look_up();
}

}  // namespace limbo
