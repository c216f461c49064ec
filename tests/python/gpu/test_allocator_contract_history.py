"""Recorded history: what is noted, with which stacks, and what torch's tools make of it."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import (
    MIB,
    check_statistics,
    empty,
    full,
    have_compiler,
    in_threads,
    room_for,
)
from torch._C._autograd import DeviceType
from torch.cuda import _memory_viz

pytestmark = pytest.mark.usefixtures("allocator")

# Shapes that nothing else asks for.
ROWS, COLUMNS = 311, 411
SHAPE_BYTES = ROWS * COLUMNS * 4

record: Any = torch.cuda.memory._record_memory_history
snapshot = torch.cuda.memory._snapshot


@pytest.fixture(autouse=True)
def _record_nothing_afterwards(allocator: None) -> Iterator[None]:  # noqa: ARG001
    yield
    record(None)
    torch.cuda.memory._set_memory_metadata("")


def traces() -> list[dict[str, Any]]:
    everything = snapshot()["device_traces"]
    return next((entries for entries in everything if entries), [])


def blocks_of_shape(taken: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        block
        for segment in taken["segments"]
        for block in segment["blocks"]
        if block["requested_size"] == SHAPE_BYTES and block["state"] == "active_allocated"
    ]


def make_the_tensor() -> torch.Tensor:
    return torch.rand(ROWS, COLUMNS, device="cuda")


def names(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["name"] for frame in frames]


@torch.jit.script
def scripted_function() -> torch.Tensor:
    return torch.rand(311, 411, device="cuda")


def test_a_block_knows_where_it_was_allocated() -> None:
    record("state", stacks="python")
    tensor = make_the_tensor()
    (block,) = blocks_of_shape(snapshot())
    assert block["address"] == tensor.data_ptr()
    assert block["frames"][0]["filename"].endswith("test_allocator_contract_history.py")
    assert "make_the_tensor" in names(block["frames"])
    assert block["frames"][0]["line"] > 0


def test_frames_of_cpp_and_of_scripts() -> None:
    record("state", stacks="all")
    tensor = make_the_tensor()
    (block,) = blocks_of_shape(snapshot())
    assert "::rand" in str(block["frames"])
    del tensor
    record("state", stacks="python")
    tensor = scripted_function()
    (block,) = blocks_of_shape(snapshot())
    assert "scripted_function" in names(block["frames"])
    del tensor


def test_nothing_is_noted_before_and_after() -> None:
    before = make_the_tensor()
    (block,) = blocks_of_shape(snapshot())
    assert not block.get("frames")
    record("all")
    during = torch.rand(ROWS, COLUMNS, device="cuda")
    assert any(block["frames"] for block in blocks_of_shape(snapshot()))
    record(None)
    count = len(traces())
    after = make_the_tensor()
    assert len(traces()) == count
    assert not torch._C._cuda_isHistoryEnabled()
    del before, during, after


def test_the_order_of_entries() -> None:
    torch.cuda.empty_cache()
    record("all", context=None, clear_history=True)
    tensor = empty(30 * MIB)
    address = tensor.data_ptr()
    del tensor
    torch.cuda.empty_cache()
    entries = [entry for entry in traces() if entry["size"] == 30 * MIB]
    assert [entry["action"] for entry in entries] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    for entry in entries:
        assert entry["addr"] == address
        assert entry["stream"] == torch.cuda.current_stream().cuda_stream
        assert tuple(entry["segment_pool_id"]) == (0, 0) if "segment_pool_id" in entry else True
    times = [entry["time_us"] for entry in traces()]
    assert times == sorted(times)
    import time

    assert abs(times[-1] / 1e6 - time.time()) < 60


def test_a_free_that_waits_is_completed_later() -> None:
    side = torch.cuda.Stream()
    record("all", context=None, clear_history=True)
    tensor = full(30 * MIB)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        tensor.add_(1)
    tensor.record_stream(side)
    del tensor

    def actions() -> list[str]:
        return [entry["action"] for entry in traces() if entry["size"] == 30 * MIB]

    assert actions()[-1] == "free_requested"
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert actions()[-2:] == ["free_completed", "segment_free"]


def test_out_of_memory_is_an_entry() -> None:
    record("all", clear_history=True)
    with room_for(32 * MIB), pytest.raises(torch.OutOfMemoryError):
        empty(64 * MIB)
    (entry,) = [entry for entry in traces() if entry["action"] == "oom"]
    assert entry["size"] == 64 * MIB
    assert entry["device_free"] > 0


def test_a_snapshot_is_an_entry() -> None:
    record("all", context=None, clear_history=True)
    keep = empty(3 * MIB)
    snapshot()
    actions = [entry["action"] for entry in traces()]
    assert "snapshot" in actions
    assert actions.index("alloc") < actions.index("snapshot")
    del keep


@pytest.mark.parametrize("context", [None, "state", "alloc", "all"])
def test_which_stacks_are_kept(context: str | None) -> None:
    size_bytes = 12 * MIB + 4321  # a segment of its own, which goes with it
    record(context=context, clear_history=True)
    kept: dict[str, torch.Tensor] = {}

    def the_allocation() -> None:
        kept["it"] = empty(size_bytes)

    def the_free() -> None:
        kept.clear()

    the_allocation()
    (block,) = (
        block
        for segment in snapshot()["segments"]
        for block in segment["blocks"]
        if block["requested_size"] == size_bytes
    )
    assert ("the_allocation" in str(block.get("frames"))) == (context is not None)
    the_free()
    torch.cuda.empty_cache()
    text = json.dumps(snapshot())
    assert ("the_free" in text) == (context == "all")
    assert ("the_allocation" in text) == (context in ("alloc", "all"))
    assert ("empty_cache" in text) == (context == "all")


def test_stacks_may_be_switched_off_in_between() -> None:
    kept: list[torch.Tensor] = []

    def noted_first() -> None:
        kept.append(torch.rand(4, 4, device="cuda"))

    def not_noted() -> None:
        kept.append(torch.rand(3, 4, device="cuda"))

    def noted_last() -> None:
        kept.append(torch.rand(4, 4, device="cuda"))

    record(context="all", stacks="python")
    noted_first()
    record(context=None)
    not_noted()
    record(context="all", stacks="python")
    noted_last()
    text = json.dumps(snapshot())
    assert "noted_first" in text
    assert "not_noted" not in text
    assert "noted_last" in text


def test_the_history_is_bounded() -> None:
    record("all", context=None, max_entries=10, clear_history=True)
    for size in range(1, 101):
        empty(size * 512)
    entries = traces()
    assert len(entries) == 10
    assert max(entry["size"] for entry in entries) == 100 * 512
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times), "the oldest first, also when the ring has wrapped"


def test_clearing() -> None:
    record("all", context=None, clear_history=True)
    empty(600)
    assert traces()
    record("all", context=None)
    assert traces(), "switching on again forgets nothing"
    record("all", context=None, clear_history=True)
    assert [entry for entry in traces() if entry["action"] != "snapshot"] == []


@pytest.mark.parametrize(
    "skipped",
    [
        ["free_requested"],
        ["free_requested", "free_completed"],
        ["alloc"],
        ["segment_alloc", "segment_free"],
        ["snapshot"],
        [],
        None,
    ],
)
def test_actions_that_are_skipped(skipped: list[str] | None) -> None:
    torch.cuda.empty_cache()
    record(context="all", stacks="python", skip_actions=skipped, clear_history=True)
    empty(30 * MIB)
    torch.cuda.empty_cache()
    snapshot()
    everything = {
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "snapshot",
    }
    assert {entry["action"] for entry in traces()} == everything - set(skipped or [])


def test_metadata() -> None:
    torch.cuda.memory._set_memory_metadata("step 7")
    assert torch.cuda.memory._get_memory_metadata() == "step 7"
    record("all", context=None, clear_history=True)
    empty(30 * MIB)
    torch.cuda.empty_cache()
    torch.cuda.memory._set_memory_metadata("")
    entries = traces()
    assert entries
    assert {entry["user_metadata"] for entry in entries} == {"step 7"}
    empty(30 * MIB)
    assert traces()[-1]["user_metadata"] == ""
    assert torch.cuda.memory._get_memory_metadata() == ""


def test_annotations() -> None:
    record("all", global_record_annotations=True, clear_history=True)
    with torch.profiler.record_function("a part of the step"):
        empty(3 * MIB)
    annotations = snapshot()["external_annotations"]
    record(None, global_record_annotations=False)
    assert any("a part of the step" in str(annotation) for annotation in annotations)
    stages = [annotation.get("stage") for annotation in annotations]
    assert stages.count("START") == stages.count("END") >= 1


def test_compiled_regions() -> None:
    missing = have_compiler()
    if missing:
        pytest.skip(missing)
    torch._dynamo.reset()

    def work(x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.relu(x + 1)
        torch._dynamo.graph_break()
        return torch.cat([x, x])

    compiled = torch.compile(work)
    data = torch.ones(ROWS, COLUMNS, device="cuda")
    compiled(data)
    record(context="all", compile_context=True, clear_history=True)
    compiled(data)
    regions = [entry["compile_context"] for entry in traces() if entry["action"] == "alloc"]
    record(None, compile_context=False)
    assert [region for region in regions if region != "N/A"], regions
    assert all("Torch-Compiled Region" in region for region in regions if region != "N/A")


def test_all_of_the_tools(tmp_path: Path) -> None:
    before = snapshot()
    record("all")
    side = torch.cuda.Stream()
    kept = [make_the_tensor(), empty(3 * MIB)]
    with torch.cuda.stream(side):
        kept.append(empty(70_000))
    kept.pop(0)
    x = torch.rand(128, 128, device="cuda")
    x * x + x * x
    file = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))
    with file.open("rb") as stored:
        taken = pickle.load(stored)
    assert str(128 * 128 * 4) in json.dumps(taken)
    assert "total_reserved" in _memory_viz.segsum(taken)
    assert "alloc" in _memory_viz.trace(taken)

    def lines(text: str) -> str:  # instead of a picture, which wants a script from the network
        return text

    assert "test_all_of_the_tools" in _memory_viz.memory(taken, format_flamegraph=lines)
    assert "test_all_of_the_tools" in _memory_viz.segments(taken, format_flamegraph=lines)
    differences = _memory_viz.compare(
        before["segments"], taken["segments"], format_flamegraph=lines
    )
    assert isinstance(differences, str)
    assert torch.cuda.memory_snapshot(), "the plain one works meanwhile too"
    for page in (
        _memory_viz.segment_plot(taken),
        _memory_viz.trace_plot(taken),
        _memory_viz.trace_plot(taken, filter_freed=True),  # changes what it is given
    ):
        assert "<script" in page.lower()
    check_statistics()


def test_the_older_form_of_recording() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record(
            True,
            trace_alloc_max_entries=100_000,
            trace_alloc_record_context=True,
        )
        assert torch._C._cuda_isHistoryEnabled()
        tensor = make_the_tensor()
        assert "make_the_tensor" in json.dumps(snapshot())
        record(False)
    del tensor


def test_history_of_a_graphs_memory() -> None:
    record("all", clear_history=True)
    start = torch.zeros(ROWS, COLUMNS, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = start + 1
    pool = tuple(graph.pool())
    pools = {tuple(entry["segment_pool_id"]) for entry in traces() if "segment_pool_id" in entry}
    found = [b for b in blocks_of_shape(snapshot()) if b["address"] == result.data_ptr()]
    assert "test_history_of_a_graphs_memory" in names(found[0]["frames"])
    if pools:
        assert pool in pools
    graph.replay()
    torch.cuda.synchronize()


def test_history_from_many_threads() -> None:
    record("all", context="all", stacks="python", max_entries=1000, clear_history=True)

    def work(index: int) -> None:
        for _ in range(100):
            full(600 * (index + 1), index)

    in_threads(8, work)
    entries = traces()
    assert len(entries) == 1000
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times)


def test_profiler_with_memory() -> None:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
        with_stack=True,
        profile_memory=True,
        record_shapes=True,
    ) as profile:
        tensor = torch.rand(128, 128, device="cuda")
        product = tensor * tensor + tensor
    total = max(event.device_memory_usage for event in profile.key_averages())
    assert total >= 128 * 128 * 4
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    on_gpu = [event for event in events if event.device_type() == DeviceType.CUDA]
    assert on_gpu
    assert any(event.nbytes() == 128 * 128 * 4 for event in on_gpu)
    plot = json.dumps(_memory_viz._profile_to_snapshot(profile))
    assert "category" in plot
    assert "test_profiler_with_memory" in plot
    assert _memory_viz.profile_plot(profile)
    del tensor, product
