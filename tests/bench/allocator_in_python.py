"""limbo_bench_allocator inside a Python process, over RMM's pool.

    allocator_in_python.py LIBRARY [arguments of limbo_bench_allocator]

RMM sets up its pool from Python, so the benchmark comes to it as a library.
"""

from __future__ import annotations

import ctypes
import sys

import allocator_steps


def main() -> int:
    allocator_steps.choose("rmm")
    arguments = [sys.argv[0], "--backend", "current", *sys.argv[2:]]
    encoded = [argument.encode() for argument in arguments]
    library = ctypes.CDLL(sys.argv[1])
    argv = (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)
    return int(library.limbo_bench_allocator(len(encoded), argv))


if __name__ == "__main__":
    sys.exit(main())
