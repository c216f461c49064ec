"""What an allocator costs a program in Python; allocator.py runs it, once for each back end.

    allocator_steps.py limbo|native|native-expandable|async|rmm [--quick] [--library PATH]

The last line is RESULT and a JSON object: nanoseconds of one torch.empty, milliseconds of one
training step. With the library of limbo_bench_allocator also the nanoseconds of a pair of its calls
inside this process. The environment (PYTORCH_CUDA_ALLOC_CONF) is allocator.py's part.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
import time
from collections.abc import Callable

import torch

RESULT = "RESULT "


def choose(backend: str) -> None:
    if backend == "limbo":
        import torch_limbo

        torch_limbo.enable()
    elif backend == "rmm":
        import rmm  # type: ignore[import-not-found, unused-ignore]
        from rmm.allocators.torch import (  # type: ignore[import-not-found, unused-ignore]
            rmm_torch_allocator,
        )

        rmm.reinitialize(pool_allocator=True)
        torch.cuda.memory.change_current_allocator(rmm_torch_allocator)


def best(measured: dict[str, tuple[Callable[[], None], int]], rounds: int) -> dict[str, float]:
    """Seconds of one call in the best round, by name; with each call, how many a round has.

    The rounds are in turn, so that what disturbs the host for a moment disturbs one round of all.
    The device is idle before and after each.
    """
    results: dict[str, float] = {}
    for call, _ in measured.values():
        call()
    for _ in range(rounds):
        for name, (call, calls) in measured.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - start) / calls
            results[name] = min(seconds, results.get(name, seconds))
    return results


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).sum().backward()
        optimizer.step()

    return step


def many_tiny_layers() -> Callable[[], None]:
    """Bound by the host: every kernel is over before the next one is there."""
    layers: list[torch.nn.Module] = []
    for _ in range(100):
        layers += [torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.ReLU()]
    return training_step(torch.nn.Sequential(*layers).cuda(), torch.randn(32, 64, device="cuda"))


def one_large_block() -> Callable[[], None]:
    """Bound by the device: big matrix products."""
    block = torch.nn.TransformerEncoderLayer(
        4096, 32, 16384, batch_first=True, device="cuda", dtype=torch.bfloat16
    )
    batch = torch.randn(8, 1024, 4096, device="cuda", dtype=torch.bfloat16)
    return training_step(block, batch)


def empty() -> None:
    torch.empty(1024, device="cuda")


def empty_on_cpu() -> None:
    torch.empty(1024)


def pair_in_cpp(library: str) -> float | None:
    """What raw_alloc and raw_delete of 4 KiB take in this process; None when that failed."""
    with tempfile.NamedTemporaryFile() as file:
        words = ["", "--backend", "current", "--only", "pair-4KiB", "--json", file.name]
        encoded = [word.encode() for word in words]
        argv = (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)
        if ctypes.CDLL(library).limbo_bench_allocator(len(encoded), argv) != 0:
            return None
        value = json.load(file)["rows"][0]["value"]
    return None if value is None else float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--library", help="liblimbo_allocator_bench.so")
    options = parser.parse_args()
    choose(options.backend)
    rounds = 2 if options.quick else 20
    few = 100 if options.quick else 10_000
    seconds = best({"torch-empty": (empty, few), "cpu-empty": (empty_on_cpu, few)}, rounds)
    # torch.empty once more: a thread that has launched kernels has a context current for certain.
    seconds |= best(
        {
            "step-tiny": (many_tiny_layers(), 2 if options.quick else 10),
            "step-large": (one_large_block(), 1 if options.quick else 3),
            "torch-empty-later": (empty, few),
            "cpu-empty-later": (empty_on_cpu, few),
        },
        rounds,
    )
    results = {
        name: value * (1e3 if name.startswith("step") else 1e9) for name, value in seconds.items()
    }
    if options.backend != "rmm":  # torch has no numbers of it
        results["reserved-mib"] = torch.cuda.max_memory_reserved() / 2**20
    print(RESULT + json.dumps(results), flush=True)  # kept whatever comes of the library
    if options.library is not None:
        pair = pair_in_cpp(options.library)
        if pair is not None:
            print(RESULT + json.dumps({**results, "pair-in-python": pair}))


if __name__ == "__main__":
    main()
