// One process of the kill matrix, from its birth by fork to its end.
//
// Datagrams over the control socket, the first byte is the verb:
//
// | to the process | what                                  | answer |
// |----------------|---------------------------------------|--------|
// | c              | check the invariants                  | none, or a finding in the arena |
// | s              | stop acting; give back, free          | s      |
// | b              | be balanced, in the end               | b, and what is not, in words |
// | B              | as b, and all memory is the driver's  | b, ... |
// | a              | act: it is its turn                   | none   |
// | g              | go on behind s                        | none   |
// | q              | end by exit                           | none   |
//
// By itself it says r when it has started, p when a fork child of it holds its life line, and l when
// its GPU context is lost.
#pragma once

#include "tests/tools/killmatrix/arena.h"
#include "tests/tools/killmatrix/mail.h"
#include "tests/tools/killmatrix/plan.h"

namespace limbo::killmatrix {

// The exit status of a process that could not go on, and has said why.
inline constexpr int kCannotGoOn = 3;

struct Birth {
  Plan plan;
  Arena* arena = nullptr;
  Post* post = nullptr;
  int control = -1;
  std::uint32_t slots = 0;  // how many processes there are
  std::chrono::milliseconds balance_within{0};
};

// Does not return. In a child that was forked before its parent had used Limbo.
[[noreturn]] void live(const Birth& birth);

// The last process of all: alone on the machine, it looks whether the dead have left anything there,
// and clears away their sockets, as every process does that lends. Does not return.
[[noreturn]] void live_last(const Birth& birth);

}  // namespace limbo::killmatrix
