"""An unchanged training loop, with the allocator installed in each way there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch_limbo
from gpu_scripts import run_script


@pytest.fixture(scope="module")
def native_losses() -> dict[str, Any]:
    return {}


def check_training(result: dict[str, Any], losses: list[float]) -> None:
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    assert result["losses"] == losses, "other losses than with torch's own allocator"
    assert result["backend"] == "limbo"
    assert 0 < result["requested"] <= result["allocated"] <= result["peak"] <= result["reserved"]
    assert result["statistics"] > 50
    assert result["summary"]
    assert result["snapshot_reserved"] == result["reserved"]
    assert result["snapshot_allocated"] == result["allocated"]
    assert result["accelerator"] == result["allocated"]


@pytest.mark.parametrize("way", ["stock", "enable", "allocator"])
def test_training(native_losses: dict[str, Any], way: str) -> None:
    if not native_losses:
        native_losses.update(run_script("train.py", "native"))
        assert native_losses["backend"] == "native"
    library = [str(torch_limbo.library_path())] if way == "stock" else []
    check_training(run_script("train.py", way, *library), native_losses["losses"])


def test_more_than_there_is() -> None:
    result = run_script("out_of_memory.py")
    assert result["too_much"] == "OutOfMemoryError"
    assert re.search(r"CUDA out of memory\. Tried to allocate \d+\.\d\d GiB", result["text"])
    assert result["absurd"] == "OutOfMemoryError"
    assert result["works"]
    assert result["ooms"] >= 1
    assert result["second"] == "OutOfMemoryError"
    assert result["retry"] == "", result["retry_text"]
    assert result["allocated"] == 0


def test_enabled_too_late() -> None:
    result = run_script("late.py")
    assert result["code"] == "already_in_use"
    assert result["fine_when_only_initialised"]


def test_the_demo() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_limbo", "demo", "--device", "cuda", "--steps", "4"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "LIMBO_DEVICE": "cuda"},
    )
    print(done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0
    last = done.stdout.rstrip().splitlines()[-1]
    assert re.fullmatch(r"demo: lent=\d+ released=\d+ swept=\d+ lost=0 corrupted=0", last)
