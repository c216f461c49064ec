// How Limbo's errors cross into torch.
//
// A limbo::Error becomes a c10::Error (RuntimeError in Python) whose text begins with
// "limbo[<code name>]: ", so that Python finds the code again. limbo::OutOfMemory becomes torch's
// own c10::OutOfMemoryError (out_of_memory.h), without a prefix: programs match its text.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "allocator/error.h"

namespace limbo {

// "limbo[bad_descriptor]: <text>"
[[nodiscard]] std::string error_text_for_torch(ErrorCode code, std::string_view text);

// What a caught exception says, for places that must not throw: code and text.
struct ErrorReport {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
};
// Call it in a catch block.
[[nodiscard]] ErrorReport current_exception_report() noexcept;

// Call it in a catch block: throws what torch understands. c10 errors go on as they are.
[[noreturn]] void rethrow_for_torch();

// Runs `call`; its errors leave as torch's.
template <typename Call>
auto for_torch(Call&& call) -> std::invoke_result_t<Call> {
  try {
    return std::forward<Call>(call)();
  } catch (...) {
    rethrow_for_torch();
  }
}

}  // namespace limbo
