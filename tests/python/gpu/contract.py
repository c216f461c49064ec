"""What the tests of torch's allocator contract share.

They run in the process of pytest, under Limbo, or under torch's own allocator when
LIMBO_TESTS_NATIVE=1: what they ask for is what torch promises, so both have to pass. What only one
of them does is marked by `native_differs`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

NATIVE = os.environ.get("LIMBO_TESTS_NATIVE", "") == "1"
DEVICE = 0

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# The policy that both follow; memory statistics of many tests of torch's rest on it.
BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB

#: About 200 ms on a GPU of 2 GHz: longer than a host that is busy itself takes to come to what a
#: test does behind such work.
SOME_CYCLES = 400_000_000

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


def native_differs(why: str) -> pytest.MarkDecorator:
    """For what Limbo does on purpose in another way than torch's own allocator."""
    return pytest.mark.skipif(NATIVE, reason=f"Limbo's own: {why}")


#: For tests of what happens while a stream is busy. tests/gpu/sanitize.py sets the variable.
needs_overlap = pytest.mark.skipif(
    os.environ.get("LIMBO_TESTS_SERIAL", "") == "1",
    reason="compute-sanitizer lets no call return before its kernel is over",
)


# ---- installing ---------------------------------------------------------------------------------


@functools.cache
def install() -> None:
    """Put the allocator under test in its place, once for this process."""
    if not NATIVE:
        os.environ["LIMBO_DEVICE"] = "cuda"
        import torch_limbo

        torch_limbo.enable()
    torch.cuda.init()
    expected = "native" if NATIVE else "limbo"
    assert torch.cuda.get_allocator_backend() == expected


PRELUDE = """
import json, os, sys
import torch
if os.environ.get("LIMBO_TESTS_NATIVE", "") != "1":
    import torch_limbo
    torch_limbo.enable()
MIB = 1 << 20
def report(**values):
    print("RESULT " + json.dumps(values), flush=True)
"""


def in_a_process(code: str, *, timeout: float = 100, **environment: str) -> dict[str, Any]:
    """What `code` reports, run in a process of its own under the allocator under test.

    For what cannot be undone, or has to be said before CUDA starts. `code` finds torch, MIB and
    report(**values).
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + code],
        env={**os.environ, "LIMBO_DEVICE": "cuda", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stderr[-4000:]}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, f"nothing was reported:\n{done.stdout}\n{done.stderr[-4000:]}"
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


# ---- order between tests ------------------------------------------------------------------------


def settle() -> None:
    """Nothing runs, nothing is kept that could be given back."""
    torch.cuda.synchronize()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def forget_old_objects() -> None:
    """What lives now is not looked at again by the garbage collector, which would take most of the
    time of most tests: torch and its compiler have very many objects."""
    gc.freeze()


def memory_use() -> dict[str, int]:
    """Bytes and segments, as each test has to leave them."""
    numbers = torch.cuda.memory_stats()
    names = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "segment")
    return {name: int(numbers[f"{name}.all.current"]) for name in names}


def context_is_lost() -> bool:
    """Whether an earlier error has spoiled CUDA for the rest of this process."""
    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").add_(1).item()
    except torch.OutOfMemoryError:
        return False
    except RuntimeError:
        return True
    return False


# ---- looking ------------------------------------------------------------------------------------


def stat(name: str, kind: str = "all", when: str = "current") -> int:
    """One number of memory_stats(), 0 before there is any."""
    return int(torch.cuda.memory_stats().get(f"{name}.{kind}.{when}", 0))


def segments(pool: PoolId | None = None) -> list[dict[str, Any]]:
    """The snapshot's segments; of one pool if it is given."""
    return [
        segment
        for segment in torch.cuda.memory_snapshot()
        if pool is None or tuple(segment["segment_pool_id"]) == tuple(pool)
    ]


def private_segments() -> list[dict[str, Any]]:
    return [each for each in segments() if tuple(each["segment_pool_id"]) != DEFAULT_POOL]


def what_is_there() -> list[str]:
    """Every segment in a line: for whoever asks why a test leaves memory behind."""
    return [
        f"pool {tuple(segment['segment_pool_id'])}, stream {segment['stream']:#x}: "
        + ", ".join(f"{block['size']} {block['state']}" for block in segment["blocks"])
        for segment in segments()
    ]


def blocks(pool: PoolId | None = None) -> list[dict[str, Any]]:
    """All blocks, each with its address, in the order of the snapshot."""
    found = []
    for segment in segments(pool):
        address = segment["address"]
        for block in segment["blocks"]:
            assert block.get("address", address) == address, "addresses are sums of sizes"
            found.append({**block, "address": address, "stream": segment["stream"]})
            address += block["size"]
        assert address == segment["address"] + segment["total_size"], "blocks tile the segment"
    return found


def live_blocks(pool: PoolId) -> int:
    return sum(block["state"] == "active_allocated" for block in blocks(pool))


def block_at(address: int) -> dict[str, Any]:
    """The block that starts there."""
    found = [block for block in blocks() if block["address"] == address]
    assert len(found) == 1, f"{len(found)} blocks start at {address:#x}"
    return found[0]


def lies_in(address: int, pool: PoolId) -> bool:
    return any(
        segment["address"] <= address < segment["address"] + segment["total_size"]
        for segment in segments(pool)
    )


def sums_over_the_snapshot() -> dict[str, int]:
    """What the statistics have to say, counted in the snapshot."""
    sums: Counter[str] = Counter()
    for segment in torch.cuda.memory_snapshot():
        kinds = ("all", segment["segment_type"] + "_pool")

        def add(name: str, count: int, kinds: tuple[str, ...] = kinds) -> None:
            for kind in kinds:
                sums[f"{name}.{kind}.current"] += count

        add("segment", 1)
        add("reserved_bytes", segment["total_size"])
        add("allocated_bytes", segment["allocated_size"])
        add("active_bytes", segment["active_size"])
        add("requested_bytes", segment["requested_size"])
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                add("allocation", 1)
            if block["state"] != "inactive":
                add("active", 1)
            elif len(segment["blocks"]) > 1:
                add("inactive_split", 1)
                add("inactive_split_bytes", block["size"])
    return dict(sums)


STAT_NAMES = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
STAT_KINDS = ("all", "small_pool", "large_pool")


def check_statistics() -> None:
    """The statistics equal the sums over the snapshot, and hang together."""
    numbers = torch.cuda.memory_stats()
    sums = sums_over_the_snapshot()
    wrong = {}
    for name in STAT_NAMES:
        for kind in STAT_KINDS:
            key = f"{name}.{kind}.current"
            if numbers[key] != sums.get(key, 0):
                wrong[key] = (numbers[key], sums.get(key, 0))
            prefix = f"{name}.{kind}"
            assert numbers[f"{prefix}.peak"] >= numbers[f"{prefix}.current"], prefix
    assert not wrong, f"(statistics, snapshot): {wrong}"
    for name in STAT_NAMES:
        parts = sum(numbers[f"{name}.{kind}.current"] for kind in STAT_KINDS[1:])
        assert parts == numbers[f"{name}.all.current"], name
    assert numbers["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert numbers["reserved_bytes.all.current"] == torch.cuda.memory_reserved()


def private_pools() -> set[PoolId]:
    """Those that have memory."""
    return {tuple(segment["segment_pool_id"]) for segment in private_segments()}


def takes_memory_of_the_device(size_bytes: int) -> bool:
    """Whether the device has so much less while it is allocated here.

    Other programs take and give back beside that, so it is tried some times.
    """
    for _ in range(5):
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        tensor = empty(size_bytes)
        taken = free - torch.cuda.mem_get_info()[0]
        del tensor
        if taken >= size_bytes:
            return True
    return False


# ---- doing --------------------------------------------------------------------------------------


def empty(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def full(size_bytes: int, value: int = 1) -> torch.Tensor:
    return torch.full((size_bytes,), value, dtype=torch.uint8, device="cuda")


@contextlib.contextmanager
def room_for(more_bytes: int) -> Iterator[None]:
    """So much may be reserved beyond what is, and no more: out of memory is near."""
    before = torch.cuda.get_per_process_memory_fraction()
    total = torch.cuda.mem_get_info()[1]
    limit = torch.cuda.memory_reserved() + more_bytes
    # Half a byte more, so that the limit does not come out as one byte less.
    torch.cuda.set_per_process_memory_fraction((limit + 0.5) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before)


@contextlib.contextmanager
def busy(stream: torch.cuda.Stream, cycles: int = SOME_CYCLES) -> Iterator[None]:
    """Work on `stream` that stands behind a kernel of that many cycles."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)
        yield


def require_busy(stream: torch.cuda.Stream) -> None:
    """Fail where the work that `busy` put on the stream is over: it was to outlast the test's."""
    assert not stream.query(), "the stream was waited for, or the host took longer than its work"


def in_threads(count: int, work: Callable[[int], None], timeout: float = 60) -> None:
    """work(0), work(1), ... at once; the first exception is raised here."""
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), f"a thread still ran after {timeout} s"
    if failures:
        raise failures[0]


def warm_up(work: Callable[..., Any], *inputs: Any) -> torch.cuda.Stream:
    """Runs `work` on a side stream, as a capture wants it; the stream is returned."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    return stream


def chain(start: torch.Tensor, steps: int = 8) -> torch.Tensor:
    """Temporaries that are freed while it goes on; start + steps comes out."""
    value = start.clone()
    for _ in range(steps):
        value = value + 1
    return value


def captured(
    work: Callable[..., Any], *inputs: Any, pool: Any = None, **options: Any
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of work(*inputs), and what that returned while it was captured.

    Captured on the stream that torch takes for all captures, so that graphs of one pool can use
    each other's memory.
    """
    warm_up(work, *inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, **options):
        result = work(*inputs)
    return graph, result


def have_compiler() -> str:
    """Empty when torch.compile can work here, else what it lacks."""
    import importlib.util
    import shutil

    if importlib.util.find_spec("triton") is None:
        return "torch.compile needs triton, which is not installed"
    if not (shutil.which("gcc") or shutil.which("cc") or shutil.which("g++")):
        return "torch.compile needs a C compiler, and none is in PATH"
    include = Path(_python_include())
    if not (include / "Python.h").is_file():
        return f"torch.compile needs Python's headers, and {include} has no Python.h"
    return ""


def _python_include() -> str:
    import sysconfig

    return sysconfig.get_paths()["include"]
