"""What memory_allocated, memory_stats, memory_snapshot, memory_summary and their resets say."""

from __future__ import annotations

import random
import re
import warnings
from typing import Any

import pytest
import torch
from contract import (
    LARGE_SEGMENT_BYTES,
    MIB,
    SMALL_SEGMENT_BYTES,
    STAT_KINDS,
    STAT_NAMES,
    block_at,
    blocks,
    check_statistics,
    empty,
    in_a_process,
    in_threads,
    memory_use,
    segments,
    settle,
    stat,
    takes_memory_of_the_device,
)

pytestmark = pytest.mark.usefixtures("allocator")


def segment_of(tensor: torch.Tensor) -> dict[str, Any]:
    (found,) = [
        segment
        for segment in segments()
        if 0 <= tensor.data_ptr() - segment["address"] < segment["total_size"]
    ]
    return found


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, SMALL_SEGMENT_BYTES),
        (512, 512, SMALL_SEGMENT_BYTES),
        (513, 1024, SMALL_SEGMENT_BYTES),
        (MIB, MIB, SMALL_SEGMENT_BYTES),
        (MIB + 1, MIB + 512, LARGE_SEGMENT_BYTES),
        (10 * MIB - 512, 10 * MIB - 512, LARGE_SEGMENT_BYTES),
        (11 * MIB, 11 * MIB, 12 * MIB),
        (64 * MIB, 64 * MIB, 64 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(asked: int, block: int, segment: int) -> None:
    before = memory_use()
    tensor = empty(asked)
    found = block_at(tensor.data_ptr())
    # A rest of a large segment that is worth no block of its own stays with it.
    whole = segment if segment - block <= MIB and segment > SMALL_SEGMENT_BYTES else block
    assert (found["size"], found["requested_size"]) == (whole, asked)
    assert torch.cuda.memory_allocated() - before["allocated_bytes"] == whole
    assert segment_of(tensor)["total_size"] == segment


def test_statistics_equal_the_snapshot_after_each_step() -> None:
    choose = random.Random(20)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    live: list[torch.Tensor] = []
    for step in range(300):
        dice = choose.random()
        if dice < 0.55 or not live:
            size = choose.choice([1, 600, 5000, MIB - 1, MIB + 1, 3 * MIB, 12 * MIB, 33 * MIB])
            with torch.cuda.stream(choose.choice(streams)):
                live.append(empty(size))
        elif dice < 0.95:
            live.pop(choose.randrange(len(live)))
        else:
            torch.cuda.empty_cache()
        if step % 3 == 0 or dice >= 0.95:
            check_statistics()
    live.clear()
    check_statistics()


def test_the_snapshot_says_what_is_where() -> None:
    small, large = empty(700), empty(3 * MIB)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = empty(700)
    addresses = [segment["address"] for segment in segments()]
    assert addresses == sorted(addresses)
    for tensor, size, kind, stream in [
        (small, 700, "small", torch.cuda.current_stream()),
        (large, 3 * MIB, "large", torch.cuda.current_stream()),
        (other, 700, "small", side),
    ]:
        block = block_at(tensor.data_ptr())
        assert block["state"] == "active_allocated"
        assert block["requested_size"] == size
        assert block["stream"] == stream.cuda_stream
        segment = segment_of(tensor)
        assert segment["segment_type"] == kind
        assert segment["device"] == 0
        assert tuple(segment["segment_pool_id"]) == (0, 0)
        assert segment["is_expandable"] is False
        assert segment["allocated_size"] == segment["active_size"]
        assert segment["requested_size"] <= segment["allocated_size"] <= segment["total_size"]
    address = large.data_ptr()
    del large, tensor
    states = [block["state"] for block in blocks() if block["address"] == address]
    assert states in ([], ["inactive"])


def test_the_whole_snapshot() -> None:
    keep = empty(MIB)
    snapshot = torch.cuda.memory._snapshot()
    assert {"segments", "device_traces", "allocator_settings", "external_annotations"} <= set(
        snapshot
    )
    assert len(snapshot["device_traces"]) >= 1
    settings = snapshot["allocator_settings"]
    for key in (
        "PYTORCH_CUDA_ALLOC_CONF",
        "max_split_size",
        "garbage_collection_threshold",
        "expandable_segments",
        "pinned_num_register_threads",
        "release_lock_on_cudamalloc",
        "pinned_use_cuda_host_register",
        "roundup_power2_divisions",
        "graph_capture_record_stream_reuse",
    ):
        assert key in settings
    assert settings["expandable_segments"] is False
    places = {block["address"] for segment in snapshot["segments"] for block in segment["blocks"]}
    assert keep.data_ptr() in places


def test_every_statistic_has_its_key() -> None:
    empty(1)
    numbers = torch.cuda.memory_stats()
    for name in STAT_NAMES:
        for kind in STAT_KINDS:
            for when in ("current", "peak", "allocated", "freed"):
                assert f"{name}.{kind}.{when}" in numbers
    for name in ("oversize_allocations", "oversize_segments"):
        for when in ("current", "peak", "allocated", "freed"):
            assert f"{name}.{when}" in numbers
    for name in (
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "max_split_size",
    ):
        assert isinstance(numbers[name], int)
    assert numbers["max_split_size"] == -1, "unlimited"
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated()


def test_no_statistics_before_cuda_starts() -> None:
    result = in_a_process(
        """
before = dict(torch.cuda.memory_stats())
initialized = torch.cuda.is_initialized()
allocated = torch.cuda.memory_allocated()
torch.ones(1, device="cuda")
report(before=before, initialized=initialized, allocated=allocated,
       after=len(torch.cuda.memory_stats()))
"""
    )
    assert result["before"] == {}
    assert not result["initialized"]
    assert result["allocated"] == 0
    assert result["after"] > 50


def test_peaks() -> None:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
    tensors = [empty(4 * MIB) for _ in range(6)]
    reserved = torch.cuda.memory_reserved()
    del tensors
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() == before + 24 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved
    assert torch.cuda.max_memory_reserved() == reserved
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
    for name in STAT_NAMES:
        assert stat(name, when="peak") == stat(name)


def test_the_same_work_has_the_same_peak() -> None:
    a = torch.randn(512, 512, device="cuda")
    b = torch.randn(512, 512, device="cuda")
    a @ b  # the library's own workspace is there from now on

    def peak(work: Any) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        result = work()
        most = torch.cuda.max_memory_allocated()
        del result
        return most

    out = torch.empty_like(a)
    peaks = {peak(lambda: a @ b), peak(lambda: torch.mm(a, b)), peak(lambda: torch.matmul(a, b))}
    assert len(peaks) == 1
    assert peak(lambda: torch.mm(a, b, out=out)) == peaks.pop() - 512 * 512 * 4


def test_accumulated_numbers_and_their_reset() -> None:
    empty(30 * MIB)
    torch.cuda.empty_cache()
    assert stat("allocated_bytes", when="allocated") > 0
    torch.cuda.reset_accumulated_memory_stats()
    numbers = torch.cuda.memory_stats()
    for name in STAT_NAMES:
        for kind in STAT_KINDS:
            assert numbers[f"{name}.{kind}.allocated"] == 0
            assert numbers[f"{name}.{kind}.freed"] == 0
    for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc"):
        assert numbers[name] == 0
    assert numbers["num_device_free"] == 0
    current = stat("allocated_bytes")
    tensor = empty(30 * MIB)
    del tensor
    torch.cuda.empty_cache()
    numbers = torch.cuda.memory_stats()
    assert numbers["allocated_bytes.all.current"] == current
    assert numbers["allocated_bytes.all.allocated"] == 30 * MIB
    assert numbers["allocated_bytes.all.freed"] == 30 * MIB
    assert numbers["requested_bytes.all.allocated"] == 30 * MIB
    assert numbers["reserved_bytes.large_pool.allocated"] == 30 * MIB
    assert numbers["reserved_bytes.large_pool.freed"] == 30 * MIB
    assert numbers["segment.all.allocated"] == 1
    assert numbers["segment.all.freed"] == 1
    assert numbers["num_device_alloc"] == 1
    assert numbers["num_device_free"] == 1
    assert numbers["num_sync_all_streams"] == 1


def test_empty_cache_returns_what_is_free() -> None:
    settle()
    before = torch.cuda.memory_reserved()
    syncs, frees = (
        torch.cuda.memory_stats()[n] for n in ("num_sync_all_streams", "num_device_free")
    )
    kept, dropped = empty(64 * MIB), empty(64 * MIB)
    del dropped
    assert torch.cuda.memory_reserved() == before + 128 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before + 64 * MIB
    numbers = torch.cuda.memory_stats()
    assert numbers["num_sync_all_streams"] == syncs + 1
    assert numbers["num_device_free"] == frees + 1
    del kept
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


def test_numbers_of_the_device() -> None:
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    assert abs(total - torch.cuda.get_device_properties(0).total_memory) < total // 20
    assert takes_memory_of_the_device(512 * MIB)
    # Other programs may take and give back between the two questions.
    pairs = [(torch.accelerator.get_memory_info(), torch.cuda.mem_get_info()) for _ in range(20)]
    assert any(of_accelerator == of_cuda for of_accelerator, of_cuda in pairs)


def test_the_accelerators_numbers_are_the_same() -> None:
    tensor = empty(3 * MIB)
    pairs = [
        (torch.accelerator.memory_allocated(), torch.cuda.memory_allocated()),
        (torch.accelerator.memory_reserved(), torch.cuda.memory_reserved()),
        (torch.accelerator.max_memory_allocated(), torch.cuda.max_memory_allocated()),
        (torch.accelerator.max_memory_reserved(), torch.cuda.max_memory_reserved()),
    ]
    for accelerator, cuda in pairs:
        assert accelerator == cuda > 0
    numbers = torch.cuda.memory_stats()
    for key, value in torch.accelerator.memory_stats().items():
        assert numbers[key] == value, key
    del tensor
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    torch.accelerator.reset_accumulated_memory_stats()
    assert stat("allocated_bytes", when="allocated") == 0


def test_old_names() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.cuda.memory_cached() == torch.cuda.memory_reserved()
        assert torch.cuda.max_memory_cached() == torch.cuda.max_memory_reserved()
        empty(40 * MIB)
        torch.cuda.reset_max_memory_allocated()
        assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
        torch.cuda.reset_max_memory_cached()
        assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()


def test_memory_summary() -> None:
    tensor = empty(40 * MIB)
    summary = torch.cuda.memory_summary()
    for row in ("Allocated memory", "Active memory", "Requested memory", "GPU reserved memory"):
        assert row in summary
    for row in ("Non-releasable memory", "Allocations", "Oversize allocations", "CUDA OOMs"):
        assert row in summary
    allocated = re.search(r"Allocated memory\s*\|\s*(\d+) (\S+)", summary)
    assert allocated is not None
    assert int(allocated[1]) > 0
    assert len(torch.cuda.memory_summary(abbreviated=True)) < len(summary)
    assert torch.cuda.memory_summary(device=0) == torch.cuda.memory_summary()
    del tensor


def test_numbers_with_many_threads() -> None:
    before = memory_use()
    allocations = stat("allocation", when="allocated")

    def work(index: int) -> None:
        choose = random.Random(index)
        live = []
        for _ in range(300):
            live.append(empty(choose.choice([700, 5000, 70_000, 2 * MIB])))
            if len(live) > 10:
                live.pop(choose.randrange(len(live)))

    in_threads(8, work)
    check_statistics()
    after = memory_use()
    for name in ("allocated_bytes", "active_bytes", "requested_bytes"):
        assert after[name] == before[name]
    assert stat("allocation", when="allocated") == allocations + 8 * 300
