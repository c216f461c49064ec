// The one exception family of Limbo.
//
// Every error carries a code (for programs), one sentence that says what happened and to whom, and
// what to do about it (for people). `what()` is the sentence and the advice joined.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace limbo {

enum class ErrorCode : std::uint8_t {
  kBadArgument = 1,   // a value that the function cannot take; the text names it and the range
  kUnknownOption,     // an option's name or value that does not exist; the text lists what does
  kOutOfMemory,       // the device has no room left, after everything that could be freed was
  kDoubleFree,        // the block was freed already
  kForeignFree,       // the pointer was never handed out by this allocator
  kInteriorFree,      // the pointer lies inside a block and is not its start
  kNotLendable,       // memory that Limbo did not allocate, or that cannot be shared
  kBadDescriptor,     // truncated, altered, or of another version; nothing was touched
  kGone,              // the export is over: its memory is not the sender's message any more
  kWithdrawn,         // the sender took the message back
  kExpired,           // the message was opened after its time limit
  kProducerExited,    // the process that owns the memory has ended, or has lost its GPU context
  kDeviceNotVisible,  // the owner's GPU is not visible to this process
  kNoChannel,         // the owner cannot be reached; the text has the path and the cause
  kLedgerFull,        // a table of fixed capacity is full; the text names the option to raise
  kDeviceError,       // a driver call failed; the text has the call and the driver's words
  kNotResizable,      // a received storage cannot grow
  kForkedChild,       // this process was forked after its parent had used the device
  kNotAvailableYet,   // what this version cannot do yet; the text says what
  kAlreadyInUse,      // installation after CUDA memory was used; a fixed option; a second copy
  kWrongTorch,        // built for another minor version of torch
  kNameTaken,         // a living process publishes something under this name
  kNoSuchName,        // nobody publishes anything under this name
  kBusy,              // another process or thread keeps the names locked
  kInternal,          // a broken invariant of Limbo itself
};

// The code's stable name in lower case, for instance "bad_descriptor".
[[nodiscard]] std::string_view error_code_name(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  // `happened`: one sentence, with the values involved. `advice`: what to do; may be empty.
  Error(ErrorCode code, const std::string& happened, const std::string& advice = {});

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace limbo
