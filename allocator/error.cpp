#include "allocator/error.h"

namespace limbo {

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kBadArgument:
      return "bad_argument";
    case ErrorCode::kUnknownOption:
      return "unknown_option";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kDoubleFree:
      return "double_free";
    case ErrorCode::kForeignFree:
      return "foreign_free";
    case ErrorCode::kInteriorFree:
      return "interior_free";
    case ErrorCode::kNotLendable:
      return "not_lendable";
    case ErrorCode::kBadDescriptor:
      return "bad_descriptor";
    case ErrorCode::kGone:
      return "gone";
    case ErrorCode::kWithdrawn:
      return "withdrawn";
    case ErrorCode::kExpired:
      return "expired";
    case ErrorCode::kProducerExited:
      return "producer_exited";
    case ErrorCode::kDeviceNotVisible:
      return "device_not_visible";
    case ErrorCode::kNoChannel:
      return "no_channel";
    case ErrorCode::kLedgerFull:
      return "ledger_full";
    case ErrorCode::kDeviceError:
      return "device_error";
    case ErrorCode::kNotResizable:
      return "not_resizable";
    case ErrorCode::kForkedChild:
      return "forked_child";
    case ErrorCode::kNotAvailableYet:
      return "not_available_yet";
    case ErrorCode::kAlreadyInUse:
      return "already_in_use";
    case ErrorCode::kWrongTorch:
      return "wrong_torch";
    case ErrorCode::kNameTaken:
      return "name_taken";
    case ErrorCode::kNoSuchName:
      return "no_such_name";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

namespace {
std::string joined(const std::string& happened, const std::string& advice) {
  return advice.empty() ? happened : happened + " " + advice;
}
}  // namespace

Error::Error(ErrorCode code, const std::string& happened, const std::string& advice)
    : std::runtime_error(joined(happened, advice)), code_(code) {}

}  // namespace limbo
