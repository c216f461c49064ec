// The whole program, also for processes that load it as a library.
#pragma once

extern "C" int limbo_bench_allocator(int argc, char** argv);
