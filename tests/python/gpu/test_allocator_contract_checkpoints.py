"""Checkpoints of private pools, which torch.compile(mode="reduce-overhead") takes and restores."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from contract import (
    BLOCK_BYTES,
    DEVICE,
    LARGE_SEGMENT_BYTES,
    MIB,
    SMALL_SEGMENT_BYTES,
    PoolId,
    captured,
    check_statistics,
    live_blocks,
    segments,
    settle,
)

pytestmark = pytest.mark.usefixtures("no_private_memory_is_left")


def ones(size_bytes: int) -> torch.Tensor:
    return torch.ones(size_bytes, dtype=torch.uint8, device="cuda")


def take_checkpoint(pool: PoolId) -> Any:
    return torch._C._cuda_getCheckpointState(DEVICE, pool)


def restore(
    state: Any, stale: list[torch.Tensor] | None = None, living: list[torch.Tensor] | None = None
) -> None:
    """`stale` tensors lose their memory; `living` ones own what the checkpoint says again."""
    torch._C._cuda_setCheckpointPoolState(
        DEVICE,
        state,
        [tensor.untyped_storage()._cdata for tensor in stale or []],
        [tensor.untyped_storage()._cdata for tensor in living or []],
    )


def layout(pool: PoolId) -> dict[int, Any]:
    """By address: everything about a segment that a checkpoint brings back."""
    fields = (
        "device",
        "total_size",
        "allocated_size",
        "active_size",
        "segment_type",
        "segment_pool_id",
    )
    return {
        segment["address"]: (
            [segment[field] for field in fields],
            [(block["size"], block["state"]) for block in segment["blocks"]],
        )
        for segment in segments(pool)
    }


def description(tensor: torch.Tensor) -> dict[str, Any]:
    storage = tensor.untyped_storage()
    return {
        "nbytes": storage.nbytes(),
        "data_ptr": storage.data_ptr(),
        "size": tensor.shape,
        "stride": tensor.stride(),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "storage_offset": tensor.storage_offset(),
    }


def tensor_over(what: dict[str, Any]) -> torch.Tensor:
    """A tensor over memory that it does not own."""
    make: Any = torch._C.__dict__["_construct_storage_from_data_pointer"]
    storage = make(what["data_ptr"], what["device"], what["nbytes"])
    result = torch.empty(0, device=what["device"], dtype=what["dtype"])
    return result.set_(storage, what["storage_offset"], what["size"], what["stride"])


def free_raw(address: int) -> None:
    torch._C._cuda_cudaCachingAllocator_raw_delete(address)


def several_sizes() -> list[torch.Tensor]:
    large = torch.zeros(8 * MIB, device="cuda", dtype=torch.uint8)
    large = large + large
    small = ones(MIB) + ones(MIB) + ones(MIB)
    return [large, ones(MIB) + small, ones(MIB)]


def one_in_the_middle() -> list[torch.Tensor]:
    return [[ones(BLOCK_BYTES) for _ in range(11)][5].add_(2)]


def two_in_the_middle() -> list[torch.Tensor]:
    row = [ones(BLOCK_BYTES) for _ in range(11)]
    return [row[5], row[8]]


def two_neighbours() -> list[torch.Tensor]:
    row = [ones(BLOCK_BYTES) for _ in range(11)]
    return [row[5], row[6]]


@pytest.mark.parametrize(
    "work", [several_sizes, one_in_the_middle, two_in_the_middle, two_neighbours]
)
@pytest.mark.parametrize("drop", [False, True])
def test_the_layout_comes_back(work: Callable[[], list[torch.Tensor]], drop: bool) -> None:
    graph, results = captured(work)
    pool = graph.pool()
    addresses = [tensor.untyped_storage().data_ptr() for tensor in results]
    before = layout(pool)
    state = take_checkpoint(pool)
    assert layout(pool) == before, "taking a checkpoint changes nothing"
    if drop:
        del results
        assert layout(pool) != before
    restore(state)
    assert layout(pool) == before
    check_statistics()
    if drop:
        for address in addresses:
            free_raw(address)
        assert live_blocks(pool) == 0
        check_statistics()


def test_the_layout_of_a_network_comes_back() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(15376, 32)
    ).cuda()
    image = torch.rand(2, 3, 33, 33, device="cuda")

    def work() -> torch.Tensor:
        with torch.no_grad():
            return torch.softmax(layers(image), dim=-1)

    graph, result = captured(work)
    pool = graph.pool()
    before = layout(pool)
    state = take_checkpoint(pool)
    restore(state)
    assert layout(pool) == before
    graph.replay()
    assert torch.allclose(result, work(), atol=1e-5)
    check_statistics()


def test_what_was_allocated_since_is_freed() -> None:
    first, kept = captured(lambda: [ones(BLOCK_BYTES)])
    pool = first.pool()
    before = layout(pool)
    state = take_checkpoint(pool)
    second, since = captured(lambda: [ones(BLOCK_BYTES)], pool=pool)
    assert layout(pool) != before
    restore(state, stale=since)
    del since  # its memory is not its own any more: nothing is freed twice
    after = layout(pool)
    assert {address: after[address] for address in before} == before
    check_statistics()
    del kept
    gc.collect()
    assert live_blocks(pool) == 0
    del first, second


def test_blocks_of_tensors_that_died_are_allocated_again() -> None:
    """... and belong to nobody, until somebody frees them by address."""
    graph, results = captured(lambda: [ones(BLOCK_BYTES), ones(BLOCK_BYTES)])
    pool = graph.pool()
    before = layout(pool)
    state = take_checkpoint(pool)
    addresses = [tensor.data_ptr() for tensor in results]
    del results
    assert live_blocks(pool) == 0
    restore(state)
    assert layout(pool) == before
    for left, address in zip((1, 0), addresses, strict=True):
        free_raw(address)
        assert live_blocks(pool) == left
    check_statistics()


def test_tensors_get_their_memory_back() -> None:
    data = torch.tensor([1], device="cuda")

    def work() -> list[torch.Tensor]:
        return [
            ones(SMALL_SEGMENT_BYTES) + data,
            ones(SMALL_SEGMENT_BYTES) + data,
            ones(LARGE_SEGMENT_BYTES) + data,
        ]

    graph, results = captured(work)
    pool = graph.pool()
    graph.replay()
    state = take_checkpoint(pool)
    described = [description(tensor) for tensor in results]
    assert live_blocks(pool) == 3
    del results
    assert live_blocks(pool) == 0
    again: list[Any] = [tensor_over(each) for each in described]
    assert [float(tensor.mean(dtype=torch.float)) for tensor in again] == [2.0] * 3
    data.add_(1)
    graph.replay()
    assert [float(tensor.mean(dtype=torch.float)) for tensor in again] == [3.0] * 3
    restore(state, living=again[:2])
    for tensor, standard in zip(again, (True, True, False), strict=True):
        assert torch._C._has_Standard_Deleter(tensor.untyped_storage()._cdata) == standard
    del tensor
    assert live_blocks(pool) == 3
    again[0] = None
    assert live_blocks(pool) == 2
    again[1] = None
    assert live_blocks(pool) == 1
    again[2] = None  # it never owned its memory
    assert live_blocks(pool) == 1
    free_raw(described[2]["data_ptr"])
    assert live_blocks(pool) == 0
    check_statistics()


def test_a_deleter_that_is_taken_away() -> None:
    """What cudagraph trees do to results of an earlier run: the memory goes, the tensor stays."""
    graph, results = captured(lambda: [ones(3 * MIB)])
    pool = graph.pool()
    storage = results[0].untyped_storage()._cdata
    assert torch._C._has_Standard_Deleter(storage)
    torch._C._free_And_Remove_DeleterFn(storage)
    assert live_blocks(pool) == 0
    assert not torch._C._has_Standard_Deleter(storage)
    del results
    assert live_blocks(pool) == 0
    check_statistics()
    del graph


def test_checkpoints_of_checkpoints() -> None:
    """A path of graphs, gone along again and again, as cudagraph trees do."""
    first, one = captured(lambda: [ones(3 * MIB), ones(700)])
    pool = first.pool()
    at_first, layout_first = take_checkpoint(pool), layout(pool)
    second, two = captured(lambda: [ones(5 * MIB), ones(1400)], pool=pool)
    at_second, layout_second = take_checkpoint(pool), layout(pool)
    described = [description(tensor) for tensor in two]
    for _ in range(3):
        restore(at_first, stale=two)
        now = layout(pool)
        assert {address: now[address] for address in layout_first} == layout_first
        two = [tensor_over(each) for each in described]
        restore(at_second, living=two)
        assert layout(pool) == layout_second
        check_statistics()
    second.replay()
    assert [int(tensor.min()) for tensor in two] == [1, 1]
    del one, two
    gc.collect()
    assert live_blocks(pool) == 0
    del first, second


def test_which_blocks_of_a_pool_live() -> None:
    pool = torch.cuda.graph_pool_handle()
    graph, result = captured(lambda: torch.ones(4, device="cuda"), pool=pool)

    def check(expected: set[int]) -> bool:
        return torch._C._cuda_checkPoolLiveAllocations(DEVICE, pool, expected)

    address = result.data_ptr()
    assert check({address})
    assert not check({address, 0})
    assert not check(set())
    del result
    assert check(set())
    assert not check({address})
    del graph


def test_eager_work_in_a_graphs_pool() -> None:
    """Allocations of one thread go to a pool that a graph has made, beside other threads'."""
    pool = torch.cuda.graph_pool_handle()
    graph, result = captured(lambda: torch.rand(4, device="cuda"), pool=pool)
    del result
    assert len(segments(pool)) == 1

    @contextlib.contextmanager
    def inside() -> Iterator[None]:
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.device(DEVICE):
            torch._C._cuda_beginAllocateCurrentThreadToPool(DEVICE, pool)
            try:
                yield
            finally:
                torch._C._cuda_endAllocateToPool(DEVICE, pool)
                torch._C._cuda_releasePool(DEVICE, pool)
        torch.cuda.current_stream().wait_stream(stream)

    def three() -> None:
        one, two = ones(LARGE_SEGMENT_BYTES), ones(LARGE_SEGMENT_BYTES)
        three = one + two
        del one, two, three

    failures: list[BaseException] = []

    def in_the_pool() -> None:
        try:
            with inside():
                for _ in range(10):
                    three()
            three()
        except BaseException as failure:
            failures.append(failure)

    def outside() -> None:
        try:
            for _ in range(10):
                one, two = ones(LARGE_SEGMENT_BYTES), ones(LARGE_SEGMENT_BYTES)
                del one, two
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for work in (in_the_pool, outside)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(segments(pool)) == 4, "one of the graph's, three of the thread's"
    del graph
    settle()
    assert segments(pool) == []
