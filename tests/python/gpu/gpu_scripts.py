"""Running the scripts of scripts/, each in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
RESULT = "RESULT "
STACKS_S = 5.0


@functools.cache
def why_no_gpu() -> str:
    """Empty when torch can use a GPU here, else the reason. Asked in a process of its own, so that
    this one stays without CUDA; where there is no driver at all, nobody is asked."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as missing:
        return f"no NVIDIA driver ({missing})"
    code = """
import torch
if not torch.cuda.is_available():
    raise SystemExit("torch finds no usable GPU")
torch.ones(1, device="cuda")
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def _stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a script and its children, after all have said where they stand; what they printed."""
    os.killpg(process.pid, signal.SIGABRT)  # Python's fault handler prints the stacks
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STACKS_S)
    time.sleep(1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()


def compile_counting_allocator(folder: Path) -> Path:
    """The library that counting_allocator.cpp makes, in `folder`."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs a C++ compiler, and none is in PATH")
    source = Path(__file__).parent / "counting_allocator.cpp"
    made = folder / "counting.so"
    position = ["-Xcompiler", "-fPIC"] if "nvcc" in Path(compiler).name else ["-fPIC"]
    command = [compiler, "-std=c++17", "-shared", *position, str(source), "-o", str(made), "-ldl"]
    subprocess.run(command, check=True, timeout=100)
    return made


def run_script(
    name: str, *arguments: str, timeout: float = 100, **environment: str
) -> dict[str, Any]:
    """The RESULT of a script, which must end well within `timeout` seconds."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / name), *arguments],
        env={**os.environ, "LIMBO_DEVICE": "cuda", "PYTHONFAULTHANDLER": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        output, errors = _stop(process)
        errors += f"\n{name} was still running after {timeout} s and was killed"
    seconds = time.monotonic() - start
    print(f"{name} {' '.join(arguments)}: {seconds:.1f} s, exit code {process.returncode}")
    print(output, errors, sep="\n")  # pytest shows it when the test fails
    assert process.returncode == 0, f"{name} failed:\n{errors[-4000:]}"
    lines = [line for line in output.splitlines() if line.startswith(RESULT)]
    assert lines, f"{name} printed no result:\n{output}\n{errors}"
    result: dict[str, Any] = json.loads(lines[-1][len(RESULT) :])
    return result


#: A dead consumer's memory is back this long after the last of it has ended, in seconds: the driver
#: stops its kernels within a fraction of one, and there are 2 s of grace.
MOST_SECONDS_TO_RETURN = 10.0


def check_canary(result: dict[str, Any]) -> None:
    """What killed_writer.py has to have seen."""
    seconds = result["seconds_to_return"]
    print(f"the block came back {seconds:.3f} s after the end of the last that could write to it")
    assert 0 <= seconds < MOST_SECONDS_TO_RETURN
    assert result["seen_writing"], "the consumer's kernel was not seen writing"
    assert result["same_address"], "the canary must lie where the lent block was"
    assert result["spoiled"] == 0, f"{result['spoiled']} words of the canary were overwritten"
    assert result["looks"] > 0
    assert result["exit"] == -9
    lent = result["before"]["allocated"] - result["in_limbo"]["allocated"]
    assert lent == 64 * 1024 * 1024
    assert result["in_limbo"]["active"] == result["before"]["active"]
    assert result["after"]["active"] == result["before"]["active"] - lent
    assert result["statistics"]["claims_swept"] == 1
