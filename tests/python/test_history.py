"""History and snapshots as torch's own tools read them, on the simulated device.

torch's functions that start CUDA first want a driver; what they call afterwards works here.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sim
import torch
import torch_limbo
from torch.cuda import _memory_viz

MIB = 1 << 20
_OPS = torch.ops.limbo

#: What the tools and their page look up, by torch's documentation of a snapshot.
SEGMENT_KEYS = {
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "blocks",
    "frames",
}
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames"}
ENTRY_KEYS = {"action", "size", "stream", "frames", "time_us", "compile_context", "user_metadata"}


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    torch_limbo.enable()
    yield
    _OPS.sim_record_history(None)
    torch._C._cuda_emptyCache()


def record(contexts: str = "all", max_entries: int = 100_000) -> None:
    _OPS.sim_record_history(contexts, max_entries)


def snapshot() -> dict[str, Any]:
    taken: dict[str, Any] = torch.cuda.memory._snapshot()
    return taken


def traces() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = snapshot()["device_traces"][0]
    return entries


def the_allocation(count: int) -> torch.Tensor:
    return sim.empty(count)


def a_bit_of_work() -> list[torch.Tensor]:
    stream = _OPS.sim_new_stream()
    kept = [the_allocation(311), sim.empty(3 * MIB), sim.empty(30 * MIB)]
    _OPS.sim_set_stream(stream)
    kept.append(sim.empty(5000))
    _OPS.sim_set_stream(0)
    kept.pop(0)
    kept.append(the_allocation(77))
    return kept


def test_a_snapshot_has_what_the_tools_read() -> None:
    record()
    kept = a_bit_of_work()
    taken = snapshot()
    assert set(taken) >= {"segments", "device_traces", "allocator_settings", "external_annotations"}
    settings = taken["allocator_settings"]
    assert settings["expandable_segments"] is False
    assert settings["max_split_size"] == -1
    addresses = [segment["address"] for segment in taken["segments"]]
    assert addresses == sorted(addresses)
    for segment in taken["segments"]:
        assert set(segment) >= SEGMENT_KEYS
        assert segment["segment_type"] == ("large" if segment["total_size"] > 2 * MIB else "small")
        assert tuple(segment["segment_pool_id"]) == (0, 0)
        at = segment["address"]
        for block in segment["blocks"]:
            assert set(block) >= BLOCK_KEYS
            assert block["address"] == at
            at += block["size"]
            in_use = block["state"] != "inactive"
            assert ("test_history.py" in str(block["frames"])) == in_use
        assert at == segment["address"] + segment["total_size"]
    for entry in taken["device_traces"][0]:
        assert set(entry) >= ENTRY_KEYS
        assert "addr" in entry
        assert "a_bit_of_work" in str(entry["frames"])
        assert entry["compile_context"] == "N/A"
    del kept


def test_the_tools_read_a_stored_snapshot(tmp_path: Path) -> None:
    before = snapshot()
    record()
    kept = a_bit_of_work()
    file = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))
    taken = pickle.loads(file.read_bytes())
    summary = _memory_viz.segsum(taken)  # raises where numbers do not add up
    assert f"segments: {len(taken['segments'])}" in summary
    story = _memory_viz.trace(taken)
    assert "= cudaMalloc(" in story
    assert "# free completed for" in story

    def lines(text: str) -> str:  # instead of a picture, which wants a script from the network
        return text

    for view in (_memory_viz.memory, _memory_viz.segments):
        assert "the_allocation" in view(taken, format_flamegraph=lines)
    assert "only_after" in _memory_viz.compare(
        before["segments"], taken["segments"], format_flamegraph=lines
    )
    for page in (
        _memory_viz.segment_plot(taken),
        _memory_viz.trace_plot(taken),
        _memory_viz.trace_plot(taken, filter_freed=True),
    ):
        assert "<script" in page.lower()
    del kept


@pytest.mark.parametrize("contexts", ["none", "state", "alloc", "all"])
def test_which_stacks_are_kept(contexts: str) -> None:
    record(contexts)
    kept = {"it": the_allocation(311)}

    def the_free() -> None:
        kept.clear()

    (block,) = [
        block
        for segment in snapshot()["segments"]
        for block in segment["blocks"]
        if block["requested_size"] == 311 * 4
    ]
    assert ("the_allocation" in str(block["frames"])) == (contexts != "none")
    the_free()
    text = json.dumps(snapshot())
    assert ("the_free" in text) == (contexts == "all")
    assert ("the_allocation" in text) == (contexts in ("alloc", "all"))


def test_order_sizes_and_times() -> None:
    record("none")
    tensor = sim.empty(30 * MIB, dtype=torch.uint8)
    address = tensor.data_ptr()
    del tensor
    torch._C._cuda_emptyCache()
    entries = [entry for entry in traces() if entry["size"] == 30 * MIB]
    assert [entry["action"] for entry in entries] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    assert {entry["addr"] for entry in entries} == {address}
    times = [entry["time_us"] for entry in traces()]
    assert times == sorted(times)


def test_out_of_memory_is_an_entry() -> None:
    record()
    with pytest.raises(torch.OutOfMemoryError):
        sim.empty(1 << 40)
    (entry,) = [entry for entry in traces() if entry["action"] == "oom"]
    assert entry["size"] == 4 << 40
    assert entry["device_free"] > 0
    assert "addr" not in entry
    assert "raise OutOfMemoryError" in _memory_viz.trace(snapshot())


def test_a_lent_block_is_pending_until_it_is_given_back() -> None:
    record()
    tensor = the_allocation(5000)
    message = torch_limbo.share(tensor)
    del tensor

    def state_and_actions() -> tuple[str, list[str]]:
        taken = snapshot()
        states = [
            block["state"]
            for segment in taken["segments"]
            for block in segment["blocks"]
            if block["requested_size"] == 20_000
        ]
        actions = [e["action"] for e in taken["device_traces"][0] if e["size"] == 20_000]
        return "".join(states), actions

    assert state_and_actions() == ("active_pending_free", ["alloc", "free_requested"])
    torch_limbo.withdraw(message)
    torch_limbo.collect()
    assert state_and_actions() == ("", ["alloc", "free_requested", "free_completed"])


def test_metadata_and_bad_settings() -> None:
    record("none")
    torch.cuda.memory._set_memory_metadata("step 7")
    tensor = sim.empty(300)
    torch.cuda.memory._set_memory_metadata("")
    del tensor
    notes = {entry["action"]: entry["user_metadata"] for entry in traces()}
    assert notes["alloc"] == "step 7"
    assert notes["free_completed"] == ""
    with pytest.raises(RuntimeError, match=r"limbo\[bad_argument\]: There is no history with"):
        record("everything")
    with pytest.raises(RuntimeError, match="at least 1"):
        record("all", 0)
