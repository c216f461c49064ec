"""Processes that end: what comes back, when, and what arrives all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import remote
import sim
import torch.multiprocessing as mp
import torch_limbo
from balance import wait_for_empty_limbo, wait_until
from peer import Peer

pytestmark = pytest.mark.usefixtures("balanced")


def quarantined() -> list[torch_limbo.Holder]:
    return [holder for holder in torch_limbo.holders() if holder.state == "quarantine"]


def held_by_the_dead() -> int:
    """A reader that is killed while it has two tensors and a fork child; the child's pid."""
    with Peer() as peer:
        for number in range(2):
            peer.call(remote.receive, str(number), torch_limbo.share(sim.full((1000,), number)))
        child: int = peer.call(remote.fork_idle_child)
        peer.kill()
    wait_until(lambda: len(quarantined()) == 1, "the dead reader is not in quarantine")
    return child


def test_a_fork_child_of_a_dead_reader_keeps_its_blocks() -> None:
    child = held_by_the_dead()
    holder = quarantined()[0]
    assert (holder.claims, "fork child" in holder.why) == (2, True)
    assert torch_limbo.stats()["limbo_blocks"] == 2
    assert torch_limbo.reap() == torch_limbo.Reaped(processes=0, claims=0)
    os.kill(child, signal.SIGKILL)
    wait_for_empty_limbo()  # by itself
    assert quarantined() == []


def test_reap_by_force() -> None:
    child = held_by_the_dead()
    assert torch_limbo.reap(force=True) == torch_limbo.Reaped(processes=1, claims=2)
    assert torch_limbo.stats()["limbo_blocks"] == 0
    assert quarantined() == []
    os.kill(child, signal.SIGKILL)
    assert torch_limbo.reap(force=True) == torch_limbo.Reaped(processes=0, claims=0)


def gpu_of(mark: str) -> int:
    """The process that plays the GPU for whoever has this mark in its environment; its pid."""
    for entry in Path("/proc").iterdir():
        try:
            if (entry / "comm").read_text().startswith("limbo_sim") and (
                mark.encode() in (entry / "environ").read_bytes()
            ):
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("there is no such process")


def test_a_second_message_of_the_same_memory_marks_it_too(shared_peer: Peer) -> None:
    """Received from its owner, and again from a process that dies before it has written it."""
    mark = f"forwarder of {os.getpid()}"
    tensor = sim.full((1000,), 1.0)
    shared_peer.call(remote.receive, "first", torch_limbo.share(tensor))
    with Peer(LIMBO_TEST_MARK=mark) as forwarder:
        forwarder.call(remote.receive, "t", torch_limbo.share(tensor))
        message = forwarder.call(remote.write_late_and_send_on, "t", 2.0)
        gpu = gpu_of(mark)
        os.kill(gpu, signal.SIGSTOP)  # the write does not come before its process has ended
        try:
            shared_peer.call(remote.receive_unread, "second", message)
            assert shared_peer.call(remote.same_storage, "first", "second")
            assert not shared_peer.call(remote.is_orphaned, "first")
            shared_peer.call(remote.drop, "second")
            forwarder.kill()
            wait_until(lambda: shared_peer.call(remote.is_orphaned, "first"), "there is no mark")
        finally:
            os.kill(gpu, signal.SIGCONT)
    del tensor
    shared_peer.call(remote.drop, "first")
    wait_for_empty_limbo()


def put_one(queue: Any, number: int) -> None:
    queue.put(sim.full((1000,), number))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_that_ends_right_after_put(method: str) -> None:
    context = mp.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch", "torch_limbo"])
    queue = context.Queue()
    children = [context.Process(target=put_one, args=(queue, number)) for number in range(3)]
    for child in children:
        child.start()
    values = sorted(float(sim.read(queue.get(timeout=60))[999]) for _ in children)
    assert values == [0.0, 1.0, 2.0]
    for child in children:
        child.join(30)
        assert child.exitcode == 0
        child.close()
    queue.close()
    queue.join_thread()


#: The child ends long before its message is opened, and cannot read how long it may wait for that.
LATE_READER = """
import sys, time
import torch, torch_limbo, sim

def put_one(queue):
    queue.put(sim.full((1000,), 5.0))

if __name__ == "__main__":
    context = torch.multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    child = context.Process(target=put_one, args=(queue,))
    child.start()
    while queue.empty():
        time.sleep(0.01)
    child.join(0.5)  # it waits for its reader
    value = float(sim.read(queue.get(timeout=60))[999])
    child.join(30)
    queue.close()
    print(value, child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("limit", ["10s", "10000"])
def test_a_message_is_kept_for_its_reader(method: str, limit: str, tmp_path: Path) -> None:
    """By default for 5 s, also where the environment has a limit that cannot be read."""
    program = tmp_path / "late_reader.py"
    program.write_text(LATE_READER, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program), method],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "LIMBO_EXIT_DRAIN_MS": limit},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "5.0 0\n", "")


def test_a_process_waits_only_once_at_its_end() -> None:
    """A spawned process runs multiprocessing's finalizers, and then the interpreter's."""
    with Peer("spawn") as peer:
        assert 0 < peer.call(remote.left_to_drain, 60_000) <= 60_000  # nothing is in flight
        peer.call(remote.make, "t", (10,), 1.0)  # and nobody opens it
        assert peer.call(remote.left_to_drain, 50) == 0
        peer.call(remote.drop_all)


#: A program whose child is forked before anything is used, and ends right after its put.
FORKED = """
import multiprocessing, sys
import torch, torch_limbo, sim

def put_one(queue):
    queue.put(sim.full((1000,), 5.0))

context = torch.multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=put_one, args=(queue,))
child.start()
value = float(sim.read(queue.get(timeout=60))[999])
child.join(30)
queue.close()
print(value, child.exitcode)
"""


def test_a_fork_child_that_ends_right_after_put() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "5.0 0\n", "")


#: Ends with limbo full of what its reader holds, messages that nobody opens, and a reader's
#: tensors of its own.
FULL = """
import sys, torch_limbo, sim
torch_limbo.enable(exit_drain_ms=200)
received = torch_limbo.receive(bytes.fromhex(sys.stdin.readline()))
kept = [sim.full((1000,), number) for number in range(20)]
sys.stdout.write("\\n".join(torch_limbo.share(tensor).hex() for tensor in kept) + "\\n")
sys.stdout.flush()
unopened = [torch_limbo.share(tensor) for tensor in kept]
sys.stdin.readline()
kept.clear()
assert torch_limbo.stats()["limbo_blocks"] == 20
"""


def test_an_exit_with_a_full_limbo_says_nothing(shared_peer: Peer) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FULL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdin.write(torch_limbo.share(sim.full((10,), 1.0)).hex() + "\n")
    process.stdin.flush()
    for number in range(20):
        message = bytes.fromhex(process.stdout.readline())
        shared_peer.call(remote.receive, str(number), message)
    _, alarming = process.communicate("\n", timeout=60)
    assert (process.returncode, alarming) == (0, "")
    for number in range(20):
        assert bool((shared_peer.call(remote.values, str(number)) == number).all())
    shared_peer.call(remote.drop_all)
    wait_for_empty_limbo()
