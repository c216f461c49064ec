"""``python -m torch_limbo doctor``: what works, what does not, why, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch_limbo
from balance import wait_for_empty_limbo
from torch_limbo import lending_trial
from torch_limbo.capability import attempt, failed

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


def test_a_full_second_gpu_hides_nothing_else(tmp_path: Path) -> None:
    """What cannot be tried at last changes no line of what was tried before."""
    code, told = capabilities(
        LIMBO_SIM_DEVICES="2",
        LIMBO_SIM_MACHINE=str(tmp_path / "machine"),
        LIMBO_SIM_FAULTS=",".join(f"allocate:{n}=full" for n in range(2, 6)),
    )
    assert code == 0
    assert list(told) == NAMES
    assert told["memory handles"]["state"] == "works"
    assert told["life line"]["state"] == "works"
    assert told["peer access"]["state"] == "does not"
    assert "out of memory" in told["peer access"]["seen"]
    assert "free memory" in told["peer access"]["advice"]


@pytest.mark.parametrize("broken", [0, 1])
def test_of_two_gpus_one_cannot_be_asked(tmp_path: Path, broken: int) -> None:
    """Lending is tried on the other."""
    code, told = capabilities(
        LIMBO_SIM_DEVICES="2",
        LIMBO_SIM_MACHINE=str(tmp_path / "machine"),
        LIMBO_SIM_FAULTS=f"memory_info:{broken + 1}=fail",
    )
    assert code == 0, told
    assert told["GPU"]["state"] == "works"
    gpus = told["GPU"]["seen"].split("; ")
    assert gpus[broken].startswith(f"{broken}: ")
    assert "memory_info" in gpus[broken]
    assert "GiB free" in gpus[1 - broken]
    assert "CUDA_VISIBLE_DEVICES" in told["GPU"]["advice"]
    assert told["stream memory operations"]["seen"].startswith(f"GPU {1 - broken}: ")
    assert told["memory handles"]["state"] == "works"
    assert told["peer access"]["state"] == "not needed"


def test_of_two_gpus_one_has_no_stream_memory_operations(tmp_path: Path) -> None:
    code, told = capabilities(
        LIMBO_SIM_DEVICES="2",
        LIMBO_SIM_MACHINE=str(tmp_path / "machine"),
        LIMBO_SIM_FAULTS="write_words:1=fail",
    )
    assert code == 0, told
    line = told["stream memory operations"]
    assert line["state"] == "works"
    assert "write_words" in line["seen"].split("; ")[0]
    assert "driver" in line["advice"]
    assert told["memory handles"]["state"] == "works"
    assert told["peer access"]["state"] == "not needed"


def test_no_gpu_can_be_asked() -> None:
    code, told = capabilities(LIMBO_SIM_FAULTS="memory_info:*=fail")
    assert code == 1
    assert told["GPU"]["state"] == "does not"
    assert "memory_info" in told["GPU"]["seen"]
    assert told["GPU"]["advice"]
    assert told["memory handles"]["seen"] == "no GPU works"


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
    assert list(told) == NAMES
    assert told[name]["state"] == "does not", told
    assert told[name]["seen"]
    assert told[name]["advice"]
    assert told["peer access"]["state"] == "not tried"
    assert told["pidfd"]["state"] == "works"


def test_a_machine_without_a_gpu_is_told_what_to_do() -> None:
    code, told = capabilities(LIMBO_DEVICE="auto", CUDA_VISIBLE_DEVICES="")
    assert code == 1
    assert told["GPU"]["state"] == "does not"
    assert list(told) == NAMES
    assert told["GPU"]["advice"]
    assert told["memory handles"]["state"] == "not tried"
    if told["driver"]["state"] == "does not":
        assert "install NVIDIA's driver" in told["driver"]["advice"]
    for name in ("torch", "runtime directory", "pidfd", "life line", "memfd seals"):
        assert told[name]["state"] == "works", told[name]


#: A torch that is installed, and whose import ends with an error.
TORCH_FAILS = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise {0}("{1}")
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("torch", "what"),
    [
        ("import torch; torch.__version__ = '2.12.0'", "torch 2.12.0 is running"),
        ("sys.modules['torch'] = None", "has no torch"),
        (
            TORCH_FAILS.format("OSError", "libcudnn.so.9: cannot open shared object file"),
            "libcudnn",
        ),
        (TORCH_FAILS.format("ImportError", "libtorch_cuda.so: undefined symbol: ncclX"), "ncclX"),
        (TORCH_FAILS.format("ModuleNotFoundError", "No module named 'sympy'"), "'sympy'"),
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
    if command == "doctor":
        *lines, _, verdict = done.stdout.splitlines()
        assert [line[:26].strip() for line in lines] == NAMES
        assert lines[0].count("To do: Install") == 1
        assert verdict.startswith("Nothing can be lent here: torch")


def test_a_program_sees_torchs_own_error_where_torch_does_not_load() -> None:
    code = f"import sys\n{TORCH_FAILS.format('OSError', 'libcudnn.so.9: not there')}"
    done = subprocess.run(
        [sys.executable, "-c", code + "import torch_limbo"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "OSError: libcudnn.so.9: not there"
    assert "in find_spec" in done.stderr


def test_a_receiver_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending_trial, "_ANSWER_S", 0.2)
    with lending_trial.Receiver(sys.executable, "-c", "import time; time.sleep(100)") as receiver:
        for _ in range(2):
            assert receiver.read(b"") == "it gave no answer for 0.2 s"


def test_a_late_answer_is_no_other_messages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first process answers behind the limit, the second at once."""
    script = f"""
import os, sys, time
device, message = sys.stdin.readline().split()
if not os.path.exists({str(tmp_path / "first")!r}):
    open({str(tmp_path / "first")!r}, "w").close()
    time.sleep(1.5)
print("answer to", message, flush=True)
time.sleep(100)
"""
    with lending_trial.Receiver(sys.executable, "-c", script) as receiver:
        monkeypatch.setattr(lending_trial, "_ANSWER_S", 0.5)
        while receiver.read(b"\1") == "it gave no answer for 0.5 s":
            if (tmp_path / "first").exists():
                break
        monkeypatch.setattr(lending_trial, "_ANSWER_S", 60.0)
        assert receiver.read(b"\2") == "answer to 02"


def test_receivers_that_end_are_started_again() -> None:
    with lending_trial.Receiver("sh", "-c", "exit 3") as receiver:
        assert receiver.read(b"one") == "the process ended with 3"
        assert receiver.read(b"two") == "the process ended with 3"
    with lending_trial.Receiver("sh", "-c", "echo one >&2; echo the last word >&2") as receiver:
        for _ in range(2):
            assert receiver.read(b"") == "the last word"


class Undying(lending_trial.Receiver):
    made: ClassVar[list[Undying]] = []

    def __enter__(self) -> Undying:
        self.made.append(self)
        return self

    def kill(self) -> str:
        return ""

    def really_kill(self) -> None:
        super().kill()


def test_a_killed_receiver_whose_memory_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_limbo.api, "enable", lambda: None)  # this process stays as it is
    monkeypatch.setattr(lending_trial, "_RETURN_S", 0.2)
    monkeypatch.setattr(lending_trial, "Receiver", Undying)
    lent, life_line = lending_trial._lend_and_kill(0)
    assert (lent.state, life_line.state) == ("works", "does not")
    assert "is not back after" in life_line.seen
    assert "it is not known to have ended" in life_line.seen
    assert life_line.advice
    for receiver in Undying.made:
        receiver.really_kill()
    wait_for_empty_limbo()


def test_a_namespace_in_which_cuda_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """That says nothing about lending."""
    monkeypatch.setattr(lending_trial.shutil, "which", lambda _: "/usr/bin/unshare")
    monkeypatch.setattr("torch_limbo._library.simulated", lambda: False)
    monkeypatch.setattr(lending_trial, "_filled", lambda _: None)
    monkeypatch.setattr(torch_limbo.api, "share", lambda _: b"message")
    monkeypatch.setattr(lending_trial.Receiver, "read", lambda *_: "Error 304: OS call failed")
    words = {"true": "", "import torch; torch.cuda.init()": "Error 304: OS call failed"}
    monkeypatch.setattr(lending_trial, "_refusal", lambda command: words[command[-1]])
    line = lending_trial._namespaces(0)
    assert line.state == "not tried"
    assert "CUDA does not start in another one that is made here (Error 304" in line.seen
    assert line.advice
    words["import torch; torch.cuda.init()"] = ""
    line = lending_trial._namespaces(0)
    assert line.state == "does not"
    assert "a process of another one says: Error 304" in line.seen


def test_an_error_becomes_a_line() -> None:
    def refuse() -> Any:
        raise torch_limbo.LimboError("no_channel", "Nobody answers. Nor before. Start it.")

    first, second = attempt(("pidfd", "life line"), refuse)
    assert (first.seen, first.advice) == ("Nobody answers. Nor before", "Start it")
    assert (second.state, second.seen) == ("not tried", first.seen)
    line = failed("GPU", RuntimeError("CUDA error: lost. At once. Pass this. Compile that."))
    assert (line.seen, line.advice) == (
        "CUDA error: lost. At once",
        "run nvidia-smi, which may say why",
    )
    assert "ulimit" in failed("GPU", OSError("Too many open files")).advice
