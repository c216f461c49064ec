"""What goes wrong for users of other software, from Python, on a GPU."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from gpu_scripts import run_script
from known_failures import CASES


@functools.cache
def seen() -> dict[str, Any]:
    return run_script("known_failures.py")


@pytest.mark.parametrize("case", CASES)
def test_a_known_failure_does_not_happen(case: str) -> None:
    CASES[case](seen())
    assert seen()["exit"] == 0
