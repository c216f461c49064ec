"""Weights from a trainer to an engine, bucket by bucket, as RL frameworks do it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import remote
import remote_tuples
import sim
import torch
import torch_limbo
from peer import Peer

pytestmark = pytest.mark.usefixtures("balanced")

SYNCS = 50
BUCKET = 1 << 19  # elements of float32: 2 MiB
SHAPES = {f"layer{n}": (200, 1000) for n in range(4)} | {f"bias{n}": (100 + n,) for n in range(4)}

Entry = tuple[str, tuple[int, ...], int]


def buckets() -> Iterator[list[Entry]]:
    entries: list[Entry] = []
    used = 0
    for name, shape in SHAPES.items():
        count = torch.Size(shape).numel()
        if used + count > BUCKET:
            yield entries
            entries, used = [], 0
        entries.append((name, shape, used))
        used += count
    yield entries


class Trainer:
    """Its weights, and the most memory that it was seen to use."""

    def __init__(self) -> None:
        self.weights = {name: sim.full(shape, 0.0) for name, shape in SHAPES.items()}
        self.model_bytes = self.allocated()
        self.peak = 0

    @staticmethod
    def allocated() -> int:
        return int(torch_limbo.stats()["allocated_bytes"])

    def step(self, number: int) -> None:
        for index, weight in enumerate(self.weights.values()):
            sim.fill(weight, number + index / 64)

    def pack(self, flat: torch.Tensor, entries: list[Entry]) -> None:
        for name, shape, begin in entries:
            part = flat[begin : begin + torch.Size(shape).numel()].view(shape)
            torch.ops.limbo.sim_write(part, sim.read(self.weights[name]))
        self.peak = max(self.peak, self.allocated())

    def sums(self, entries: list[Entry]) -> list[float]:
        return [float(sim.read(self.weights[name]).double().sum()) for name, _, _ in entries]


def sync_with_one_buffer(trainer: Trainer, engine: Peer) -> None:
    """One tuple, and then offsets; the buffer is written again when the engine has answered."""
    flat = sim.empty(BUCKET)
    engine.call(remote_tuples.keep_bucket, remote_tuples.reduced(flat))
    for entries in buckets():
        trainer.pack(flat, entries)
        torch.ops.limbo.sim_synchronize(0)  # no send says when the bytes are there
        assert engine.call(remote_tuples.take_bucket, None, entries) == trainer.sums(entries)
    engine.call(remote.drop, remote_tuples.BUCKET)


def sync_with_a_buffer_each(trainer: Trainer, engine: Peer) -> None:
    """A tuple with each bucket; both sides let go of it at the answer."""
    for entries in buckets():
        flat = sim.empty(BUCKET)
        trainer.pack(flat, entries)
        data = remote_tuples.reduced(flat)
        assert engine.call(remote_tuples.take_bucket, data, entries) == trainer.sums(entries)
        del flat


@pytest.mark.parametrize("sync", [sync_with_one_buffer, sync_with_a_buffer_each])
def test_fifty_syncs(shared_peer: Peer, sync: object) -> None:
    trainer = Trainer()
    curve = []
    for number in range(SYNCS):
        trainer.step(number)
        sync(trainer, shared_peer)  # type: ignore[operator]
        torch_limbo.collect()
        numbers = torch_limbo.stats()
        curve.append((numbers["allocated_bytes"], numbers["active_bytes"]))
        reserved = numbers["reserved_bytes"]
        if number == 2:
            warmed_up = reserved
    assert set(curve) == {(trainer.model_bytes, trainer.model_bytes)}, "memory is not flat"
    assert trainer.peak == trainer.model_bytes + 4 * BUCKET
    assert reserved == warmed_up
    assert shared_peer.call(remote.stats)["pieces_mapped"] < 10
    shared_peer.call(remote.drop_all)
    del trainer
