// The demo's consumer: another process that is lent blocks.
#pragma once

#include "tests/support/child_process.h"

namespace limbo::demo {

// | line from the producer | what the consumer does, and answers                              |
// |------------------------|------------------------------------------------------------------|
// | take DESCRIPTOR        | receives, reads and checks: `received NUMBER BYTES ok`, or `bad` |
// | hold                   | `holding`, then reads what it holds until it is killed           |
// | give back              | gives everything back, then `empty`                              |
// | (the pipe's end)       | ends                                                             |
//
// When it holds more than it keeps it checks the oldest once more and gives it back: `released
// NUMBER BYTES ok`, or `bad`.
int run_consumer(testing::ChildContext& context);

}  // namespace limbo::demo
