"""``python -m torch_limbo ls`` and ``bench``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import remote
import sim
import torch_limbo
from peer import Peer
from torch_limbo import listing


@pytest.fixture(scope="module")
def named_once(shared_peer: Peer) -> None:  # noqa: ARG001
    """Published before any test compares: the names' files stay open."""
    with torch_limbo.Registry("listing") as registry:
        registry.publish("first", sim.full((1,), 1.0))


@pytest.fixture(autouse=True)
def nothing_stays(named_once: None, balanced: None) -> None:
    """Each test ends with a balance."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_limbo", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def own_row() -> dict[str, Any]:
    done = run("ls", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = (row for row in json.loads(done.stdout) if row["pid"] == os.getpid())
    return dict(row)


def test_who_lends_what_to_whom(shared_peer: Peer) -> None:
    tensor = sim.full((1024,), 1.0)
    shared_peer.call(remote.receive, "listed", torch_limbo.share(tensor))
    registry = torch_limbo.Registry("listing")
    registry.publish("weights", tensor)
    try:
        row = own_row()
        assert row["names"] == ["listing:weights"]
        assert row["error"] == ""
        (holder,) = (h for h in row["holders"] if h["pid"] == shared_peer.process.pid)
        assert holder["state"] == "connected"
        assert holder["claims"] == 1
        assert holder["bytes"] == 4096

        done = run("ls")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        at = next(i for i, line in enumerate(lines) if f"process {os.getpid()} lends" in line)
        assert lines[at + 1] == "  publishes listing:weights"
        (line,) = (s for s in lines[at:] if s.split()[:1] == [str(shared_peer.process.pid)])
        assert line.split()[1:5] == ["connected", "1", "4.0", "KiB"]
    finally:
        registry.unpublish("weights")
        shared_peer.call(remote.drop_all)
    del tensor


def test_a_process_that_does_not_answer_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Stopped is not ended."""
    with Peer() as lender:
        lender.call(remote.make, "t", (3,), 1.0)
        with lender.stopped():
            assert listing.run_ls(as_json=False) == 1
            with pytest.raises(torch_limbo.LimboError) as caught:
                torch_limbo.Registry().reap()
        lines = capsys.readouterr().out.splitlines()
        (at,) = (i for i, line in enumerate(lines) if f"process {lender.pid} lends" in line)
        assert lines[at + 1].startswith("  does not answer: no_channel: ")
        assert caught.value.code == "no_channel"
        lender.call(remote.drop_all)


def test_a_process_that_has_ended_meanwhile_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ghost = torch_limbo.LendingProcess(1, "0" * 32, "/nowhere")
    for processes in ([ghost], []):
        monkeypatch.setattr(listing.api, "processes", lambda processes=processes: processes)
        assert listing.run_ls(as_json=False) == 0
        assert capsys.readouterr().out == "No process of this user lends anything.\n"
        assert torch_limbo.Registry().reap() == torch_limbo.Reaped(0, 0)


def test_numbers_of_bytes_for_people() -> None:
    texts = [listing.bytes_text(n) for n in (0, 1023, 1024, 3 << 20, 5 << 40)]
    assert texts == ["0 B", "1023 B", "1.0 KiB", "3.0 MiB", "5120.0 GiB"]


def test_the_benchmark_measures() -> None:
    done = run("bench", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["gpu"] == "the simulated GPU"
    whats = [result["what"] for result in told["results"]]
    for part in ("tensor of 4 KiB", "share", "receive", "let go", "Queue", "collect"):
        assert any(part in what for what in whats), whats
    assert all(result["microseconds"] > 0 for result in told["results"])
