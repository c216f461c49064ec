#include "allocator/device/sim_companion.h"

int main(int argc, char** argv) {
  return limbo::sim::run_companion(argc, argv);
}
