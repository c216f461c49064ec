"""What goes wrong for users of other software: the cases that test_failures.py has not.

tests/README.md says which tests stand for which public report.
"""

from __future__ import annotations

import gc
import os
import signal

import pytest
import remote
import sim
import torch
import torch_limbo
from balance import wait_for_empty_limbo, wait_until
from peer import Peer

pytestmark = pytest.mark.usefixtures("balanced")


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


def test_an_idle_reader_keeps_what_it_holds(peer: Peer) -> None:
    """For hundreds of times the limit."""
    values = torch.arange(1000, dtype=torch.int32)
    tensor = sim.of(values)
    peer.call(remote.receive, "t", torch_limbo.share(tensor, ttl=0.001))
    del tensor
    before = torch_limbo.stats()
    for _ in range(10):
        unopened = torch_limbo.share(sim.full((100,), 3.0), ttl=0.03)
        wait_until(
            lambda: torch_limbo.stats()["limbo_blocks"] == 1, "the unopened message has no end"
        )
        assert peer.call(remote.code_of_receiving, unopened) == "expired"
    after = torch_limbo.stats()
    assert after["expired"] == before["expired"] + 10
    assert after["claims_swept"] == before["claims_swept"]
    assert torch.equal(peer.call(remote.values, "t"), values)
    peer.call(remote.drop, "t")


def test_nothing_grows_with_the_number_of_messages(peer: Peer) -> None:
    def send(count: int) -> None:
        for _ in range(count // 100):
            tensors = [sim.full((size,), size) for size in range(1, 101)]
            messages = [torch_limbo.share(tensor) for tensor in tensors]
            del tensors
            assert peer.call(remote.read_all, messages) == [float(size) for size in range(1, 101)]
        wait_for_empty_limbo()
        gc.collect()

    send(1000)
    before = remote.uses(), peer.call(remote.uses)
    send(4000)
    after = remote.uses(), peer.call(remote.uses)
    for (opened, resident), (opened_now, resident_now) in zip(before, after, strict=True):
        assert opened_now <= opened
        assert resident_now <= resident + 4096, "KiB"


def out_of_memory() -> str:
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        sim.empty(1 << 38)
    return str(caught.value)


def test_memory_that_a_reader_maps_is_named() -> None:
    size = 64 << 20
    with Peer() as peer:
        tensor = sim.empty(size, dtype=torch.uint8)
        peer.call(remote.receive, "t", torch_limbo.share(tensor))
        del tensor
        assert f"process {peer.pid} holds 64.00 MiB" in out_of_memory()
        peer.call(remote.drop, "t")
        wait_for_empty_limbo()
        os.kill(peer.pid, signal.SIGSTOP)  # it maps the segment, and cannot let go
        try:
            text = out_of_memory()
            assert f"process {peer.pid} still maps 64.00 MiB that should be returned" in text
            assert torch_limbo.stats()["held_for_readers_bytes"] >= size
            (holder,) = [holder for holder in torch_limbo.holders() if holder.pid == peer.pid]
            assert (holder.claims, holder.mapped_bytes) == (0, size)
        finally:
            os.kill(peer.pid, signal.SIGCONT)
