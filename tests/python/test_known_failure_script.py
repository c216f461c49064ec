"""The script of gpu/test_gpu_known_failures.py, on the simulated device."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from known_failures import CASES

HERE = Path(__file__).parent
sys.path.append(str(HERE / "gpu"))
from gpu_scripts import run_script  # noqa: E402


@functools.cache
def seen() -> dict[str, Any]:
    path = os.pathsep.join([str(HERE / "cuda_on_simulated"), os.environ["PYTHONPATH"]])
    return run_script("known_failures.py", LIMBO_DEVICE="simulated", PYTHONPATH=path)


@pytest.mark.parametrize("case", CASES)
def test_a_known_failure_does_not_happen(case: str) -> None:
    CASES[case](seen())
    assert seen()["exit"] == 0
