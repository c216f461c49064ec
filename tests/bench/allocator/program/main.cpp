#include "tests/bench/allocator/run.h"

int main(int argc, char** argv) {
  return limbo_bench_allocator(argc, argv);
}
