"""What happens beside a capture and inside it: side streams, threads, errors, waiting frees."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from contract import (
    MIB,
    SOME_CYCLES,
    blocks,
    busy,
    captured,
    chain,
    check_statistics,
    empty,
    full,
    in_a_process,
    lies_in,
    needs_overlap,
    require_busy,
    segments,
    stat,
    warm_up,
)

pytestmark = pytest.mark.usefixtures("allocator")


def test_side_streams_of_a_capture() -> None:
    """Streams that a capture forks into allocate from the graph's pool as well."""
    start = torch.zeros(MIB, device="cuda")
    sides = [torch.cuda.Stream() for _ in range(2)]

    def work() -> torch.Tensor:
        parts = [start + 1]
        for side in sides:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                parts.append(chain(start, 2))
        for side in sides:
            torch.cuda.current_stream().wait_stream(side)
        return parts[0] + parts[1] + parts[2]

    graph, result = captured(work)
    streams = {segment["stream"] for segment in segments(graph.pool())}
    assert len(streams) == 3
    assert {side.cuda_stream for side in sides} <= streams
    for value in range(3):
        start.fill_(value)
        graph.replay()
        assert bool((result == 3 * value + 5).all())


def test_other_streams_allocate_as_ever_during_a_capture() -> None:
    """Only the streams of the capture are routed to its pool."""
    start = torch.zeros(1000, device="cuda")
    stream = warm_up(lambda: chain(start))
    outside = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        with torch.cuda.stream(outside):
            pointer = torch.cuda.caching_allocator_alloc(3 * MIB)
        result = chain(start)
    pool = graph.pool()
    assert not lies_in(pointer, pool)
    assert lies_in(result.data_ptr(), pool)
    torch.cuda.caching_allocator_delete(pointer)


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_other_threads_allocate_during_a_capture(mode: str) -> None:
    start = torch.zeros(1000, device="cuda")
    stream = warm_up(lambda: chain(start))
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for size in (1024, 3 * MIB, 70 * MIB):
                    pointer = torch.cuda.caching_allocator_alloc(size)
                    torch.cuda.caching_allocator_delete(pointer)
        except BaseException as failure:
            failures.append(failure)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
        result = chain(start)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        result = result + 1
    assert not failures, failures
    start.fill_(4)
    graph.replay()
    assert bool((result == 13).all())


def test_out_of_memory_in_a_capture() -> None:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with (
        pytest.raises(torch.OutOfMemoryError, match="out of memory"),
        torch.cuda.graph(graph),
    ):
        torch.zeros(2**40, device="cuda")
    del graph
    torch.cuda.synchronize()
    assert int(full(MIB, 3).max()) == 3
    start = torch.zeros(1000, device="cuda")
    again, result = captured(chain, start)
    again.replay()
    assert bool((result == 8).all())
    check_statistics()


def test_allocations_go_on_after_a_capture_that_failed() -> None:
    result = in_a_process(
        """
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
try:
    with torch.cuda.graph(graph):
        torch.zeros(3 * MIB, device="cuda").sum().item()  # nobody may wait in a capture
    failed = ""
except RuntimeError as error:
    failed = str(error)
tensor = torch.full((40 * MIB,), 3, dtype=torch.uint8, device="cuda")
report(failed=failed, right=int(tensor.min()) == 3)
"""
    )
    assert "captur" in result["failed"]
    assert result["right"]


def test_empty_cache_leaves_living_graphs_alone() -> None:
    start = torch.zeros(4 * MIB, device="cuda")
    graph, result = captured(lambda: chain(start).sum())
    pool = graph.pool()
    before = sum(segment["total_size"] for segment in segments(pool))
    gc.collect()
    torch.cuda.empty_cache()
    assert sum(segment["total_size"] for segment in segments(pool)) == before
    others = [full(16 * MIB, 9) for _ in range(8)]
    start.fill_(1)
    graph.replay()
    assert float(result) == 9.0 * 4 * MIB
    assert all(bool((tensor == 9).all()) for tensor in others)


@needs_overlap
def test_frees_before_a_capture_do_not_disturb_it() -> None:
    """Blocks that wait for another stream are not asked about while something is captured."""
    waited_before = stat("active_bytes") - stat("allocated_bytes")
    side = torch.cuda.Stream()
    start = torch.zeros(1000, device="cuda")
    stream = warm_up(lambda: chain(start))
    waiting = [full(3 * MIB) for _ in range(4)]
    with busy(side, 5 * SOME_CYCLES):  # longer than any capture takes
        for tensor in waiting:
            tensor.add_(1)
    for tensor in waiting:
        tensor.record_stream(side)
    del waiting, tensor
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        result = chain(start)
        other = torch.zeros(5 * MIB, device="cuda") + 1
        graph.capture_end()
    require_busy(side)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((result == 8).all())
    assert bool((other == 1).all())
    del other
    torch.cuda.empty_cache()
    waits = stat("active_bytes") - stat("allocated_bytes")
    assert waits == waited_before, "what waited has come back"


def test_record_stream_in_a_capture() -> None:
    """Such a block is not used again while the capture lasts, and comes back behind it."""
    side = torch.cuda.Stream()
    start = torch.zeros(MIB, device="cuda")
    stream = warm_up(lambda: chain(start))
    with torch.cuda.stream(side):
        chain(start)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        data = start + 1
        address = data.data_ptr()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result = data * 3
        data.record_stream(side)
        del data
        other = start + 2
        assert other.data_ptr() != address
        torch.cuda.current_stream().wait_stream(side)
    for value in range(3):
        start.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((result == 3 * (value + 1)).all())
        assert bool((other == value + 2).all())
    torch.cuda.empty_cache()
    assert all(each["state"] == "inactive" for each in blocks() if each["address"] == address)
    assert stat("active_bytes") == stat("allocated_bytes")
    check_statistics()


def test_reuse_in_a_capture_when_that_is_asked_for() -> None:
    """graph_capture_record_stream_reuse: reused behind the join, not before."""
    result = in_a_process(
        """
torch._C._accelerator_setAllocatorSettings("graph_capture_record_stream_reuse:True")
first, second = torch.cuda.Stream(), torch.cuda.Stream()
graph = torch.cuda.CUDAGraph(keep_graph=True)
torch.cuda.synchronize()
with torch.cuda.stream(first):
    graph.capture_begin()
    sink = torch.empty(8, device="cuda")
    data = torch.empty(8, device="cuda")
    address = data.data_ptr()
    second.wait_stream(first)
    with torch.cuda.stream(second):
        buffer = torch.empty_like(data)
        torch.add(data, 2.0, out=buffer)
        data.record_stream(second)
    del data
    before = torch.empty(8, device="cuda")
    first.wait_stream(second)
    sink.fill_(1.0)
    after = torch.empty(8, device="cuda")
    graph.capture_end()
torch.cuda.synchronize()
report(before=before.data_ptr() == address, after=after.data_ptr() == address)
"""
    )
    assert result == {"before": False, "after": True}


def test_is_current_stream_capturing() -> None:
    assert not torch.cuda.is_current_stream_capturing()
    stream = warm_up(lambda: empty(100))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        inside = torch.cuda.is_current_stream_capturing()
        keep = empty(100) + 1
    assert inside
    del keep
