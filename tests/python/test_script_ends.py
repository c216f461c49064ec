"""How the scripts under gpu/scripts end: at once, whatever becomes of their children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "gpu" / "scripts"

# A script as they all are: it starts a process, tells it what to do, and waits for its answer.
SCRIPT = """
import multiprocessing, os, signal, sys, time
from common import next_of, run

def work(pipe, queue):
    pipe.send("begun")
    what = pipe.recv()
    if what == "raise":
        raise ValueError("the child's own words")
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "answer":
        queue.put("an answer")
    if what == "work on":
        time.sleep(100)
    pipe.recv()

def main():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    queue = context.Queue()
    child = context.Process(target=work, args=(theirs, queue))
    child.start()
    theirs.close()
    what, awaited = sys.argv[1:]
    assert ours.recv() == "begun"
    ours.send(what)
    if awaited == "nothing":
        raise ValueError("the parent's own words")
    if awaited == "left":
        return 0
    print(next_of(queue, [child]) if awaited == "queue" else ours.recv())
    return 7

if __name__ == "__main__":
    run(main)
"""


def end_of(script: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS), "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def script(tmp_path: Path) -> Path:
    made = tmp_path / "script.py"
    made.write_text(SCRIPT)
    return made


@pytest.mark.parametrize("awaited", ["pipe", "queue"])
def test_a_child_that_fails(script: Path, awaited: str) -> None:
    code, _, errors = end_of(script, "raise", awaited)
    assert code == 1
    assert "the child's own words" in errors


@pytest.mark.parametrize("awaited", ["pipe", "queue"])
def test_a_child_that_crashes(script: Path, awaited: str) -> None:
    code, _, errors = end_of(script, "crash", awaited)
    assert code == 1
    assert "exit code -11" in errors
    assert "in work" in errors, "where it crashed"


def test_an_error_while_a_child_works(script: Path) -> None:
    code, _, errors = end_of(script, "work on", "nothing")
    assert code == 1
    assert "the parent's own words" in errors


def test_a_child_that_is_left(script: Path) -> None:
    code, _, errors = end_of(script, "work on", "left")
    assert code == 0
    assert "still runs" in errors


def test_a_good_end(script: Path) -> None:
    code, output, errors = end_of(script, "answer", "queue")
    assert (code, output) == (7, "an answer\n")
    assert "main() took" in errors
