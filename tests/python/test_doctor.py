"""``python -m torch_limbo doctor``: what works, what does not, why, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NAMES = [
    "torch",
    "driver",
    "GPU",
    "memory handles",
    "stream memory operations",
    "runtime directory",
    "pidfd",
    "life line",
    "memfd seals",
    "MPS",
    "namespaces",
    "peer access",
]


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_limbo", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "LIMBO_DEVICE": "simulated", **environment},
    )


def capabilities(**environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = doctor("--json", **environment)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    assert told["can_lend"] == (done.returncode == 0)
    return done.returncode, {line["name"]: line for line in told["capabilities"]}


def test_everything_works_on_the_simulated_device() -> None:
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    *lines, blank, verdict = done.stdout.splitlines()
    assert [line[:26].strip() for line in lines] == NAMES
    assert (blank, verdict) == ("", "Lending works here.")
    by_name = dict(zip(NAMES, lines, strict=True))
    for name in NAMES:
        assert "does not" not in by_name[name], by_name[name]
    assert "another process read what it was lent" in by_name["memory handles"]
    assert "a killed receiver's memory came back in" in by_name["life line"]
    assert "a stream wrote, waited and wrote" in by_name["stream memory operations"]
    assert os.environ["LIMBO_RUNTIME_DIR"] in by_name["runtime directory"]


def test_two_gpus_open_one_anothers_memory(tmp_path: Path) -> None:
    code, told = capabilities(LIMBO_SIM_DEVICES="2", LIMBO_SIM_MACHINE=str(tmp_path / "machine"))
    assert code == 0
    assert told["GPU"]["seen"].count("GiB free") == 2
    assert told["peer access"]["state"] == "works"
    assert "GPU 1: a stream wrote" in told["stream memory operations"]["seen"]


def test_a_runtime_directory_that_others_can_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = doctor(LIMBO_RUNTIME_DIR=str(tmp_path))
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("runtime directory"))
    assert line.split()[2:4] == ["does", "not"]
    assert str(tmp_path) in line
    assert "chmod 700" in line
    assert "Nothing can be lent here: " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("open_memory:*=fail", "memory handles"),
        ("write_words:*=fail", "stream memory operations"),
        ("allocate:*=full", "memory handles"),
    ],
)
def test_what_the_driver_refuses_is_told(fault: str, name: str) -> None:
    code, told = capabilities(LIMBO_SIM_FAULTS=fault)
    assert code == 1
    assert told[name]["state"] == "does not", told
    assert told[name]["seen"]
    assert told["pidfd"]["state"] == "works"


def test_a_machine_without_a_gpu_is_told_what_to_do() -> None:
    code, told = capabilities(LIMBO_DEVICE="auto", CUDA_VISIBLE_DEVICES="")
    assert code == 1
    assert told["GPU"]["state"] == "does not"
    assert told["memory handles"]["state"] == "not tried"
    if told["driver"]["state"] == "does not":
        assert "install NVIDIA's driver" in told["driver"]["advice"]
    for name in ("torch", "runtime directory", "pidfd", "life line", "memfd seals"):
        assert told[name]["state"] == "works", told[name]


@pytest.mark.parametrize(
    ("torch", "what"),
    [
        ("import torch; torch.__version__ = '2.12.0'", "torch 2.12.0 is running"),
        ("sys.modules['torch'] = None", "has no torch"),
    ],
)
@pytest.mark.parametrize("command", ["doctor", "ls"])
def test_without_the_right_torch_it_is_said_in_a_line(torch: str, what: str, command: str) -> None:
    code = f"""
import runpy, sys
{torch}
sys.orig_argv, sys.argv = [sys.executable, "-m", "torch_limbo"], ["torch_limbo", "{command}"]
runpy.run_module("torch_limbo", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    told = done.stdout if command == "doctor" else done.stderr
    assert what in told
    assert "pip install 'torch==" in told


def test_a_receiver_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_limbo import doctor as tried

    monkeypatch.setattr(tried, "_ANSWER_S", 0.2)
    with tried._Receiver(sys.executable, "-c", "import time; time.sleep(100)") as receiver:
        assert receiver.read(b"") == "it gave no answer for 0.2 s"
