"""Tests on a GPU: each runs a script of scripts/ in a process of its own and reads its result.

Without a GPU they are skipped by name, with the reason.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
RESULT = "RESULT "

Script = Callable[..., dict[str, Any]]


@functools.cache
def why_no_gpu() -> str:
    """Empty when torch can use a GPU here, else the reason. Asked in a process of its own, so that
    this one stays without CUDA."""
    code = """
import torch
if not torch.cuda.is_available():
    raise SystemExit("torch finds no usable GPU")
torch.ones(1, device="cuda")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@pytest.fixture(autouse=True)
def _needs_gpu() -> None:
    reason = why_no_gpu()
    if reason:
        pytest.skip(f"needs a GPU: {reason}")


@pytest.fixture
def run_script() -> Script:
    """`run_script(name, *arguments, timeout=...)`: the RESULT of a script that must end well."""

    def run(name: str, *arguments: str, timeout: float = 100, **environment: str) -> dict[str, Any]:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / name), *arguments],
            env={**os.environ, "LIMBO_DEVICE": "cuda", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # its consumers too
            output, errors = process.communicate()
            errors += f"\n{name} was still running after {timeout} s and was killed"
        seconds = time.monotonic() - start
        print(f"{name} {' '.join(arguments)}: {seconds:.1f} s, exit code {process.returncode}")
        print(output, errors, sep="\n")  # pytest shows it when the test fails
        assert process.returncode == 0, f"{name} failed:\n{errors[-4000:]}"
        lines = [line for line in output.splitlines() if line.startswith(RESULT)]
        assert lines, f"{name} printed no result:\n{output}\n{errors}"
        result: dict[str, Any] = json.loads(lines[-1][len(RESULT) :])
        return result

    return run
