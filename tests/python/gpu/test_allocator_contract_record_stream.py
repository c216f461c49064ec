"""Tensor.record_stream: freed memory waits for the streams that use it, and for no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract import (
    MIB,
    SOME_CYCLES,
    block_at,
    busy,
    check_statistics,
    empty,
    full,
    in_threads,
    needs_overlap,
    require_busy,
    stat,
)

pytestmark = pytest.mark.usefixtures("allocator")

SIZE = 32 * MIB  # a segment of its own: nothing merges with it


def used_on(stream: torch.cuda.Stream, tensor: torch.Tensor, cycles: int = SOME_CYCLES) -> None:
    """Work on `stream` that reads the tensor late, announced by record_stream."""
    with busy(stream, cycles):
        tensor.add_(0)
    tensor.record_stream(stream)


@needs_overlap
def test_memory_is_not_reused_while_another_stream_uses_it() -> None:
    side = torch.cuda.Stream()
    tensor = full(SIZE)
    used_on(side, tensor)
    address = tensor.data_ptr()
    allocated, active = stat("allocated_bytes"), stat("active_bytes")
    del tensor
    allocated_since, active_since = stat("allocated_bytes"), stat("active_bytes")
    state = block_at(address)["state"]
    other = empty(SIZE)
    require_busy(side)
    assert allocated_since == allocated - SIZE
    assert active_since == active, "it is still in use"
    assert state not in ("active_allocated", "inactive")
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    again = empty(SIZE)
    assert again.data_ptr() == address
    check_statistics()


def test_the_late_reader_sees_its_data() -> None:
    side = torch.cuda.Stream()
    results = []
    for value in range(1, 9):
        source = full(SIZE, value)
        with busy(side, 10_000_000):
            results.append(source[:: 1 << 20].clone())
        source.record_stream(side)
        del source
        full(SIZE, 99)  # what would be overwritten
    torch.cuda.synchronize()
    for value, result in enumerate(results, 1):
        assert bool((result == value).all())


@needs_overlap
def test_a_view_with_an_offset() -> None:
    side = torch.cuda.Stream()
    tensor = full(SIZE)
    view = tensor[12345:]
    address = tensor.data_ptr()
    assert view.data_ptr() != address
    used_on(side, view)
    del tensor, view
    other = empty(SIZE)
    require_busy(side)
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    again = empty(SIZE)
    assert again.data_ptr() == address


def test_the_home_stream_is_not_waited_for() -> None:
    tensor = empty(SIZE)
    address = tensor.data_ptr()
    torch.cuda._sleep(50_000_000)
    tensor.record_stream(torch.cuda.current_stream())
    del tensor
    again = empty(SIZE)
    assert again.data_ptr() == address


@needs_overlap
def test_several_streams_are_all_waited_for() -> None:
    sides = [torch.cuda.Stream() for _ in range(4)]
    tensor = full(SIZE)
    for index, side in enumerate(sides, 1):
        used_on(side, tensor, index * SOME_CYCLES)
    address = tensor.data_ptr()
    del tensor
    sides[0].synchronize()
    other = empty(SIZE)
    require_busy(sides[-1])
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    again = empty(SIZE)
    assert again.data_ptr() == address


def test_recorded_often() -> None:
    side = torch.cuda.Stream()
    tensor = full(SIZE)
    for _ in range(1000):
        tensor.record_stream(side)
    address = tensor.data_ptr()
    del tensor
    torch.cuda.synchronize()
    again = empty(SIZE)
    assert again.data_ptr() == address


@needs_overlap
def test_small_blocks_of_one_segment() -> None:
    side = torch.cuda.Stream()
    tensors = [full(4096, value) for value in range(100)]
    tensors[0].sum().item()  # loads the kernel, which may wait for the device
    with busy(side):
        sums = [tensor.sum() for tensor in tensors]
    for tensor in tensors[::2]:
        tensor.record_stream(side)
    used = {tensor.data_ptr() for tensor in tensors[::2]}
    del tensors, tensor
    others = [full(4096, 200) for _ in range(200)]
    require_busy(side)
    assert not used & {tensor.data_ptr() for tensor in others}
    torch.cuda.synchronize()
    assert [int(each) for each in sums[::2]] == [4096 * value for value in range(0, 100, 2)]
    del others
    check_statistics()


def test_empty_cache_waits_and_returns_the_memory() -> None:
    side = torch.cuda.Stream()
    reserved = torch.cuda.memory_reserved()
    tensor = full(SIZE)
    used_on(side, tensor)
    del tensor
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_tensors_of_other_makers_are_left_alone() -> None:
    """Memory that no allocation of the allocator's stands behind: nothing happens, no error."""
    pointer = torch.cuda.caching_allocator_alloc(4096)

    class Array:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (1024,),
            "typestr": "<i4",
            "data": (pointer, False),
            "version": 3,
        }

    borrowed: Any = torch.as_tensor(Array(), device="cuda")
    assert borrowed.data_ptr() == pointer
    borrowed.record_stream(torch.cuda.Stream())
    torch.empty(0, device="cuda").record_stream(torch.cuda.Stream())
    torch.ones(3, device="cuda").expand(4, 3).record_stream(torch.cuda.Stream())
    del borrowed
    torch.cuda.caching_allocator_delete(pointer)
    torch.cuda.synchronize()
    check_statistics()


def test_from_many_threads() -> None:
    sides = [torch.cuda.Stream() for _ in range(4)]

    def work(index: int) -> None:
        side = sides[index % len(sides)]
        for value in range(50):
            tensor = full(MIB + 4096 * index, value)
            with torch.cuda.stream(side):
                side.wait_stream(torch.cuda.default_stream())
                copy = tensor.clone()
            tensor.record_stream(side)
            del tensor
            full(MIB + 4096 * index, 255)
            side.synchronize()
            assert bool((copy == value).all())
            del copy

    in_threads(8, work)
    torch.cuda.synchronize()
    check_statistics()


@needs_overlap
def test_recorded_by_the_untyped_storage_of_a_module() -> None:
    """As FSDP does: parameters whose storage is freed and brought back by resize_."""
    side = torch.cuda.Stream()
    parameter = torch.nn.Parameter(torch.ones(8 * MIB, device="cuda"))
    address = parameter.data_ptr()
    with busy(side):
        total = parameter.detach().sum()
    parameter.data.record_stream(side)
    parameter.untyped_storage().resize_(0)
    other = torch.zeros(8 * MIB, device="cuda")
    require_busy(side)
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    assert float(total) == 8 * MIB
    parameter.untyped_storage().resize_(32 * MIB)
    assert parameter.untyped_storage().nbytes() == 32 * MIB
