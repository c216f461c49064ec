"""A whole program under both allocators: the same losses by every way of running it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from gpu_scripts import run_script, why_no_gpu

PROGRAM = "../programs/everything.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    reason = why_no_gpu()
    if reason:
        pytest.skip(f"needs a GPU: {reason}")
    results = {}
    for allocator in ("native", "limbo"):
        folder: Path = tmp_path_factory.mktemp(allocator)
        results[allocator] = run_script(
            PROGRAM, allocator, "--out", str(folder), timeout=250, PYTHONUNBUFFERED="1"
        )
        for page in ("snapshot.pickle", "segments.html", "trace.html"):
            assert (folder / page).stat().st_size > 10_000
    return results


@pytest.mark.timeout(550)
def test_both_allocators_are_what_they_say(runs: dict[str, dict[str, Any]]) -> None:
    for allocator, result in runs.items():
        assert result["backend"] == allocator


@pytest.mark.parametrize("phase", ["eager", "MemPool", "CUDA graph", "reduce-overhead"])
def test_the_losses_are_equal_to_the_bit(runs: dict[str, dict[str, Any]], phase: str) -> None:
    if phase not in runs["native"]["losses"]:
        pytest.skip(f"{phase} was not run: {runs['native']['lacking']}")
    native, limbo = (runs[allocator]["losses"][phase] for allocator in ("native", "limbo"))
    assert limbo == native
    # Every step has images of its own, so the losses go up and down; they are numbers.
    assert all(math.isfinite(loss) for loss in limbo)


def test_the_losses_with_other_algorithms_are_close(runs: dict[str, dict[str, Any]]) -> None:
    native, limbo = (
        runs[allocator]["losses"]["cuDNN benchmark"] for allocator in ("native", "limbo")
    )
    assert limbo == pytest.approx(native, rel=5e-2)


@pytest.mark.parametrize("allocator", ["native", "limbo"])
def test_history_statistics_and_summary(runs: dict[str, dict[str, Any]], allocator: str) -> None:
    result = runs[allocator]
    assert {"alloc", "free_requested", "free_completed", "segment_alloc"} <= set(
        result["history"]["actions"]
    )
    assert {"eager", "MemPool", "CUDA graph"} <= set(result["history"]["metadata"])
    assert result["history"]["frames"] > 1000
    assert all(result["consistent"].values()), result["consistent"]
    assert result["summary"]


def test_as_much_is_left_at_the_end(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["limbo"]["left"] == runs["native"]["left"]
