"""The command line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch_limbo


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_limbo", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={
            **{name: value for name, value in os.environ.items() if name != "LIMBO_DEVICE"},
            **environment,
        },
    )


def test_the_demo_on_the_simulated_device() -> None:
    done = run("demo", "--device", "simulated", "--steps", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.rstrip().splitlines()[-1]
    found = re.fullmatch(r"demo: lent=(\d+) released=(\d+) swept=(\d+) lost=0 corrupted=0", last)
    assert found, done.stdout
    lent, released, swept = map(int, found.groups())
    assert lent == released + swept
    assert swept > 0
    assert "before the kill:" in done.stdout
    assert re.search(r"killed; after \d+ ms everything that it held is back", done.stdout)
    assert done.stderr == ""


def test_the_options_are_listed() -> None:
    done = run("options")  # needs no device
    assert done.returncode == 0, done.stderr
    assert "LIMBO_EXIT_DRAIN_MS" in done.stdout


def test_the_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("demo", "doctor", "ls", "bench", "options"):
        assert f"\n    {command} " in done.stdout
    assert run("no-such-command").returncode == 2


@pytest.mark.parametrize(
    ("command", "unbuffered"), [("options", ""), ("options", "1"), ("doctor", ""), ("--help", "")]
)
def test_a_reader_that_has_gone(command: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "torch_limbo", command],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_standard_output_that_is_closed() -> None:
    command = f"exec {sys.executable} -m torch_limbo options >&-"
    done = subprocess.run(
        ["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=110, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_wrong_number_of_steps() -> None:
    done = run("demo", "--steps", "1")
    assert done.returncode == 2
    assert "--steps cannot be 1" in done.stderr


@pytest.mark.parametrize("named_by", ["the option", "the environment"])
def test_the_demo_on_a_gpu_that_is_not_there(named_by: str) -> None:
    option = ["--device", "cuda"] if named_by == "the option" else []
    variable = {} if option else {"LIMBO_DEVICE": "cuda"}
    done = run("demo", *option, CUDA_VISIBLE_DEVICES="", **variable)
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("device_error: ")
    assert "--device simulated" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_benchmark_without_a_gpu() -> None:
    done = run("bench", CUDA_VISIBLE_DEVICES="", LIMBO_DEVICE="auto")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("device_error: There is no GPU that torch can use here.")
    assert "LIMBO_DEVICE=simulated" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_benchmark_whose_other_process_ends_says_so() -> None:
    code = """
import operator, subprocess
import torch_limbo
from torch_limbo import bench

def ends(role, **pipes):
    return subprocess.Popen(["sh", "-c", "exit 3"], text=True, stdout=subprocess.PIPE, **pipes)

def said(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)

if __name__ == "__main__":
    torch_limbo.enable(exit_drain_ms=0)
    bench._child = ends
    print(said(bench._sharing))
    bench.echo = operator.is_  # does nothing
    print(said(bench._queue))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "LIMBO_DEVICE": "simulated"},
    )
    assert done.stdout.splitlines() == [
        "the process that was lent to has ended with 3",
        "the process at the queue's other end has ended with 0",
    ], done.stderr


def test_an_error_of_torch_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch_limbo import cli

    def fail(_: object) -> int:
        raise RuntimeError("torn")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["ls"]) == 1
    assert capsys.readouterr().err == "error: torn\n"


def test_what_is_measured_beside_limbo_is_torchs_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_limbo import bench

    monkeypatch.setenv("LIMBO_ENABLE", "1")  # a child would have Limbo, too
    assert "LIMBO_ENABLE" not in bench._environment()


#: Beside the package, where every child would find it before the standard library's own if that
#: folder stood first on its path.
BACKPORT = "raise ImportError('a back-ported module stands in for the standard library')\n"

CHILDREN = """
import subprocess, sys
sys.path.append(sys.argv[1])
import torch_limbo
assert torch_limbo.__file__.startswith(sys.argv[1]), torch_limbo.__file__
from torch_limbo import bench, lending_trial
with lending_trial.Receiver() as receiver:
    print(receiver.read(b"\1"))
try:
    torch_limbo.receive(b"\1")
except torch_limbo.LimboError as error:
    print(error)
child = bench._child("receiving", stdin=subprocess.DEVNULL)
child.communicate()
assert child.returncode == 0
"""


def test_a_back_ported_module_beside_the_package_breaks_no_child(tmp_path: Path) -> None:
    package = Path(torch_limbo.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", "lib", "include")
    shutil.copytree(package, tmp_path / package.name, ignore=ignored)
    (tmp_path / "dataclasses.py").write_text(BACKPORT, encoding="utf-8")
    environment = {**os.environ, "LIMBO_LIBRARY": str(torch_limbo.library_path())}
    del environment["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
        cwd=tmp_path.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    read, refused = done.stdout.splitlines()
    assert read == refused
