"""Pools with allocators behind them, that do not split, and for when memory runs out."""

from __future__ import annotations

import ctypes
import gc
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import (
    LARGE_SEGMENT_BYTES,
    MIB,
    check_statistics,
    empty,
    full,
    lies_in,
    room_for,
)
from gpu_scripts import compile_counting_allocator

pytestmark = pytest.mark.usefixtures("allocator")


@dataclass
class Counting:
    """An allocator of the test's own, made anew for each test, and what it was asked for."""

    library: Any
    allocator: torch.cuda.memory.CUDAPluggableAllocator | None

    @property
    def handle(self) -> Any:
        assert self.allocator is not None
        return self.allocator.allocator()

    def numbers(self) -> tuple[int, int, int]:
        """Allocations, frees, bytes that are out."""
        return (
            self.library.counting_allocations(),
            self.library.counting_frees(),
            self.library.counting_bytes(),
        )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_counting_allocator(tmp_path_factory.mktemp("allocator"))


@pytest.fixture
def counting(compiled: Path, tmp_path: Path) -> Iterator[Counting]:
    own = tmp_path / "counting.so"  # another file is another library with its own numbers
    shutil.copy(compiled, own)
    library = ctypes.CDLL(str(own))
    for name in ("allocations", "frees", "bytes", "wrong_sizes"):
        getattr(library, f"counting_{name}").restype = ctypes.c_long
    made = Counting(
        library,
        torch.cuda.memory.CUDAPluggableAllocator(str(own), "counting_alloc", "counting_free"),
    )
    yield made
    assert library.counting_wrong_sizes() == 0, "freed with another size than allocated"


def test_an_allocator_behind_a_pool(counting: Counting) -> None:
    pool = torch.cuda.MemPool(counting.handle)
    assert counting.numbers() == (0, 0, 0)
    with torch.cuda.use_mem_pool(pool):
        first = full(MIB, 1)
    assert counting.numbers() == (1, 0, 2 * MIB)
    outside = full(MIB, 9)
    with torch.cuda.use_mem_pool(pool):
        second = full(MIB, 2)
        assert len(pool.snapshot()) == 1, "both lie in one segment of 2 MiB"
        third = full(MIB, 3)
        assert len(pool.snapshot()) == 2
        large = full(30 * MIB, 4)
    assert counting.numbers() == (3, 0, 34 * MIB)
    assert not lies_in(outside.data_ptr(), pool.id)
    torch.cuda.synchronize()
    assert [int(each.min()) for each in (first, second, third, large)] == [1, 2, 3, 4]
    check_statistics()
    del first, second, third, large
    assert counting.numbers()[1] == 0, "freed blocks are kept for the pool"
    del pool
    gc.collect()
    assert counting.numbers() == (3, 3, 0)


def test_a_tensor_outlives_pool_and_allocator(counting: Counting) -> None:
    pool = torch.cuda.MemPool(counting.handle)
    with torch.cuda.use_mem_pool(pool):
        tensor = full(1000, 7)
    del pool
    counting.allocator = None
    gc.collect()
    assert counting.numbers()[:2] == (1, 0)
    assert int(tensor.min()) == 7
    del tensor
    torch.cuda.empty_cache()
    assert counting.numbers() == (1, 1, 0)


def test_pools_that_do_not_split() -> None:
    splitting, whole = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
    kept = []
    for _ in range(2):
        for pool in (splitting, whole):
            with torch.cuda.use_mem_pool(pool):
                kept.append(empty(4 * MIB))
    assert len(splitting.snapshot()) == 1
    assert len(whole.snapshot()) == 2
    for segment in whole.snapshot():
        assert len(segment["blocks"]) == 1
        assert segment["total_size"] == LARGE_SEGMENT_BYTES
        assert segment["allocated_size"] == LARGE_SEGMENT_BYTES
        assert segment["requested_size"] == 4 * MIB
    check_statistics()
    kept.clear()
    with torch.cuda.use_mem_pool(whole):
        kept.append(empty(6 * MIB))
    assert len(whole.snapshot()) == 2, "a whole segment is used again"
    kept.clear()


def test_pools_for_when_memory_runs_out() -> None:
    """use_on_oom: its free memory serves others, as a last resort; other pools' does not."""
    closed, opened = torch.cuda.MemPool(), torch.cuda.MemPool(use_on_oom=True)
    small = empty(512)  # beside it is room for what looking at contents takes
    with room_for(80 * MIB):
        with torch.cuda.use_mem_pool(closed):
            one = empty(40 * MIB)
        with torch.cuda.use_mem_pool(opened):
            two = empty(40 * MIB)
        address = two.data_ptr()
        with pytest.raises(torch.OutOfMemoryError):
            empty(40 * MIB)
        del one, two
        borrowed = full(30 * MIB, 3)
        assert borrowed.data_ptr() == address
        with pytest.raises(torch.OutOfMemoryError):
            empty(30 * MIB)
        assert int(borrowed.min()) == 3
        del borrowed
        with torch.cuda.use_mem_pool(opened):
            back = empty(20 * MIB)
        assert back.data_ptr() == address
        del back
        check_statistics()
        del closed, opened, small
        gc.collect()


def test_pools_that_are_gone_are_no_resort() -> None:
    with room_for(40 * MIB):
        for _ in range(10):
            gone = torch.cuda.MemPool(use_on_oom=True)
            with torch.cuda.use_mem_pool(gone):
                tensor = empty(40 * MIB)
            del tensor
            del gone
            gc.collect()
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(40 * MIB)
        del tensor
        one, two = empty(20 * MIB), empty(20 * MIB)
        assert lies_in(one.data_ptr(), pool.id)
        assert lies_in(two.data_ptr(), pool.id)
        del one, two, pool
        gc.collect()
