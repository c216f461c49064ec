#include "hooks/error_text.h"

#include <c10/util/Exception.h>

#include "allocator/allocator.h"
#include "hooks/out_of_memory.h"

namespace limbo {
namespace {

// The code in a text that error_text_for_torch made, if there is one.
ErrorCode code_in_text(std::string_view text) {
  constexpr std::string_view kStart = "limbo[";
  if (!text.starts_with(kStart)) return ErrorCode::kInternal;
  text.remove_prefix(kStart.size());
  const std::string_view name = text.substr(0, text.find(']'));
  for (int number = 1; number <= static_cast<int>(ErrorCode::kInternal); ++number) {
    const auto code = static_cast<ErrorCode>(number);
    if (error_code_name(code) == name) return code;
  }
  return ErrorCode::kInternal;
}

}  // namespace

std::string error_text_for_torch(ErrorCode code, std::string_view text) {
  return "limbo[" + std::string(error_code_name(code)) + "]: " + std::string(text);
}

ErrorReport current_exception_report() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const OutOfMemory& error) {
    return {ErrorCode::kOutOfMemory, error.what()};
  } catch (const c10::OutOfMemoryError& error) {
    return {ErrorCode::kOutOfMemory, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return {code_in_text(error.what_without_backtrace()), error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {ErrorCode::kInternal, error.what()};
  } catch (...) {
    return {ErrorCode::kInternal, "An exception of an unknown type was thrown."};
  }
}

void rethrow_for_torch() {
  try {
    throw;
  } catch (const Error& error) {
    C10_THROW_ERROR(Error, error_text_for_torch(error.code(), error.what()));
  } catch (const OutOfMemory& error) {
    throw_out_of_memory(error);
  }
}

}  // namespace limbo
