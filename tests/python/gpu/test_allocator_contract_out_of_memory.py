"""Out of memory: its texts, what is tried before, what is left behind; memory fractions."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from contract import (
    DEVICE,
    GIB,
    MIB,
    check_statistics,
    empty,
    full,
    in_threads,
    memory_use,
    native_differs,
    room_for,
    stat,
)

pytestmark = pytest.mark.usefixtures("allocator")

NUMBER = r"\d+(\.\d+)? (bytes|KiB|MiB|GiB)"


def number(name: str) -> int:
    return int(torch.cuda.memory_stats()[name])


def test_more_than_there_is() -> None:
    before = memory_use()
    ooms = number("num_ooms")
    working = torch.zeros(1024, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        empty(800_000_000 * GIB)
    assert isinstance(caught.value, RuntimeError)
    assert torch.cuda.OutOfMemoryError is torch.OutOfMemoryError
    assert re.search(
        r"CUDA out of memory\. Tried to allocate 800000000\.00 GiB\. "
        rf"GPU {DEVICE} has a total capacity of {NUMBER} of which {NUMBER} is free\.",
        str(caught.value),
    )
    assert number("num_ooms") == ooms + 1
    # No error is left behind for what comes next, and small requests are served.
    working.fill_(1)
    assert bool((working == 1).all())
    small = full(MIB, 3)
    assert int(small.min()) == 3
    del small, working
    torch.cuda.empty_cache()
    assert memory_use() == before


def test_an_absurd_size() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        empty(8_000_000_000 * GIB)
    assert int(full(MIB, 3).min()) == 3


def test_the_text_in_order() -> None:
    keep = empty(16 * MIB)
    with room_for(32 * MIB), pytest.raises(torch.OutOfMemoryError) as caught:
        empty(64 * MIB)
    text = str(caught.value)
    parts = [
        r"CUDA out of memory\. Tried to allocate 64\.00 MiB\. ",
        rf"GPU {DEVICE} has a total capacity of {NUMBER} of which {NUMBER} is free\. ",
        rf"{NUMBER} allowed; ",
        rf"Of the allocated memory {NUMBER} is allocated by PyTorch, ",
        rf"and {NUMBER} is reserved by PyTorch but unallocated\.",
        r"If reserved but unallocated memory is large try setting ",
        r"PYTORCH_(CUDA_)?ALLOC_CONF=(expandable_segments:True|max_split_size_mb:512) "
        r"to avoid fragmentation",
    ]
    position = 0
    for part in parts:
        found = re.search(part, text[position:])
        assert found, f"{part!r} is not, or not there, in {text!r}"
        position += found.end()
    del keep


@native_differs("who holds lent memory is named only by what lends")
def test_nobody_is_named_where_nothing_is_lent() -> None:
    with room_for(32 * MIB), pytest.raises(torch.OutOfMemoryError) as caught:
        empty(64 * MIB)
    assert "in limbo" not in str(caught.value)


def test_a_retry_after_something_was_freed() -> None:
    with room_for(100 * MIB):
        first = empty(60 * MIB)
        with pytest.raises(torch.OutOfMemoryError):
            empty(60 * MIB)
        del first
        second = full(60 * MIB, 5)
        assert int(second.max()) == 5
        del second
    check_statistics()


def test_half_of_the_device_twice() -> None:
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    half = empty(total // 2)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        empty(total // 2)
    del half
    half = empty(total // 2)
    del half
    torch.cuda.empty_cache()


def test_what_is_cached_is_given_back_first() -> None:
    """Free memory in pieces of the wrong size makes room for a large request."""
    with room_for(200 * MIB):
        pieces = [empty(20 * MIB) for _ in range(10)]
        del pieces
        retries, frees = number("num_alloc_retries"), number("num_device_free")
        whole = empty(190 * MIB)
        assert number("num_alloc_retries") == retries + 1
        assert number("num_device_free") >= frees + 9
        assert number("num_ooms") >= 0
        del whole
    check_statistics()


def test_what_other_streams_cached_is_given_back_too() -> None:
    with room_for(200 * MIB):
        for _ in range(5):
            with torch.cuda.stream(torch.cuda.Stream()):
                empty(40 * MIB)
        assert empty(190 * MIB).numel() == 190 * MIB


def test_frees_that_wait_for_other_streams_are_waited_for() -> None:
    side = torch.cuda.Stream()
    with room_for(512 * MIB):
        for _ in range(12):
            tensor = empty(128 * MIB)
            with torch.cuda.stream(side):
                torch.cuda._sleep(10_000_000)
                tensor.fill_(1)
            tensor.record_stream(side)
            del tensor
    torch.cuda.synchronize()
    check_statistics()


def test_many_threads_at_the_limit() -> None:
    """Each thread alone would fit; together they do not, and nobody fails for good."""
    done = []

    def work(index: int) -> None:
        for _ in range(40):
            try:
                tensor = empty(48 * MIB)
            except torch.OutOfMemoryError:
                continue
            tensor.fill_(index)
            del tensor
        done.append(index)

    with room_for(200 * MIB):
        in_threads(8, work)
        assert len(done) == 8
        assert empty(180 * MIB).numel() == 180 * MIB
    check_statistics()


@pytest.fixture
def observed() -> list[tuple[Any, ...]]:
    """Calls of an observer. Observers stay for ever, so each writes to the list of its test."""
    calls: list[tuple[Any, ...]] = []

    def observe(device: int, size: int, device_total: int, device_free: int) -> None:
        # Observers may look at the allocator, and allocate.
        snapshot = torch.cuda.memory._snapshot()
        small = torch.ones(4, device="cuda")
        calls.append((device, size, device_total, device_free, len(snapshot["segments"])))
        del small

    attach: Any = torch._C.__dict__["_cuda_attach_out_of_memory_observer"]
    attach(observe)
    return calls


def test_observers_are_told(observed: list[tuple[Any, ...]]) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        empty(4096 * GIB)
    assert len(observed) == 1
    device, size, device_total, device_free, _ = observed[0]
    assert device == DEVICE
    assert size == 4096 * GIB
    assert 0 < device_free <= device_total
    with room_for(32 * MIB), pytest.raises(torch.OutOfMemoryError):
        empty(64 * MIB)
    assert len(observed) == 2
    assert observed[1][1] == 64 * MIB


# ---- memory fraction ----------------------------------------------------------------------------


def test_wrong_fractions() -> None:
    before = torch.cuda.get_per_process_memory_fraction()
    with pytest.raises(TypeError, match="Invalid type"):
        torch.cuda.set_per_process_memory_fraction(1)
    for value in (-0.1, 2.0):
        with pytest.raises(ValueError, match="Invalid fraction value"):
            torch.cuda.set_per_process_memory_fraction(value)
    assert torch.cuda.get_per_process_memory_fraction() == before


def test_a_fraction_is_what_was_set() -> None:
    before = torch.cuda.get_per_process_memory_fraction()
    assert before == 1.0
    try:
        for value in (0.25, 0.5, 1.0):
            torch.cuda.set_per_process_memory_fraction(value)
            assert torch.cuda.get_per_process_memory_fraction(DEVICE) == pytest.approx(value)
    finally:
        torch.cuda.set_per_process_memory_fraction(before)


def test_a_fraction_of_the_device_and_no_more() -> None:
    total = torch.cuda.mem_get_info()[1]
    before = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        # What earlier tests have left counts too.
        below = empty(int(total * 0.099) - torch.cuda.memory_reserved())
        del below
        torch.cuda.empty_cache()
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            empty(int(total * 0.101))
        torch.cuda.set_per_process_memory_fraction(1.0)
        above = empty(int(total * 0.101))
        del above
    finally:
        torch.cuda.set_per_process_memory_fraction(before)
    torch.cuda.empty_cache()


def test_cached_memory_counts_until_it_is_needed() -> None:
    with room_for(128 * MIB):
        cached = empty(100 * MIB)
        del cached
        assert stat("reserved_bytes") >= 100 * MIB
        other = empty(120 * MIB)
        assert torch.cuda.memory_allocated() >= 120 * MIB
        del other
