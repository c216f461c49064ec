"""Reduced tensors taken apart, sent by other roads, and opened by whoever has them."""

from __future__ import annotations

import pickle
import types
from multiprocessing.reduction import ForkingPickler

import pytest
import remote
import remote_tuples
import sim
import torch
import torch.multiprocessing.reductions as torch_reductions
import torch_limbo
from balance import wait_for_empty_limbo
from peer import Peer

pytestmark = pytest.mark.usefixtures("balanced")


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


def test_tuples_gathered_over_processes(peer: Peer) -> None:
    """Every rank sends its own to all, and opens all, its own too."""
    with Peer() as second, Peer() as third:
        ranks = [peer, second, third]
        tuples = [
            rank.call(remote_tuples.make, "own", (10,), number) for number, rank in enumerate(ranks)
        ]
        names = [f"of {number}" for number in range(len(ranks))]
        for rank in ranks:
            rank.begin(remote_tuples.open_all, names, tuples)
        for rank in ranks:
            assert rank.result() == [0.0, 1.0, 2.0]
        for number, rank in enumerate(ranks):
            assert rank.call(remote.same_storage, "own", names[number]) is False
            rank.call(remote.drop, "own")  # the others hold it
        for rank in ranks:
            for number, name in enumerate(names):
                assert float(rank.call(remote.values, name)[0]) == number
        for rank in ranks:
            rank.call(remote.drop_all)


def test_one_tuple_in_eight_processes() -> None:
    tensor = sim.full((1000,), 5.0)
    data = remote_tuples.reduced(tensor)
    peers = [Peer() for _ in range(8)]
    for peer in peers:
        peer.begin(remote_tuples.open_all, ["t"], [data])
    for peer in peers:
        assert peer.result() == [5.0]
    del tensor  # each of the eight holds it
    torch_limbo.collect()
    assert torch_limbo.stats()["limbo_blocks"] == 1
    for peer in peers[:4]:
        peer.stop()
    torch_limbo.collect()
    assert torch_limbo.stats()["limbo_blocks"] == 1
    for peer in peers[4:]:
        assert bool((peer.call(remote.values, "t") == 5.0).all())
        peer.kill()
    wait_for_empty_limbo()


@pytest.mark.parametrize("way", ["open_all", "open_by_torchs_own"])
def test_one_tuple_again_and_again(peer: Peer, way: str) -> None:
    tensor = sim.full((1000,), 5.0)
    data = remote_tuples.reduced(tensor)
    opened = getattr(remote_tuples, way)
    for _ in range(3):
        assert peer.call(opened, ["a", "b"], [data, data]) == [5.0, 5.0]
        assert peer.call(remote.same_storage, "a", "b")
        peer.call(remote.drop, "a", "b")
    again = remote_tuples.reduced(tensor)
    assert peer.call(opened, ["a", "b"], [data, again]) == [5.0, 5.0]
    assert peer.call(remote.same_storage, "a", "b")
    del tensor
    peer.call(remote.drop_all)


@pytest.mark.parametrize("way", ["open_all", "open_by_torchs_own"])
def test_a_tuple_outlives_its_tensor_here(peer: Peer, way: str) -> None:
    data = remote_tuples.reduced(sim.full((1000,), 5.0))
    torch_limbo.collect()
    assert peer.call(getattr(remote_tuples, way), ["t"], [data]) == [5.0]
    peer.call(remote.drop, "t")


def test_tuples_that_nobody_opens() -> None:
    """They end by their time limit, however many there are of one tensor."""
    with Peer() as producer:
        producer.call(remote.limit_messages_to, 50)
        producer.call(remote_tuples.make, "first", (1000,), 1.0)
        before = producer.call(remote.stats)
        for number in range(20):
            producer.call(remote_tuples.make, str(number), (1000,), number)
            producer.call(remote.drop, str(number))
        producer.call(remote_tuples.reduce_often, "first", 1000)
        assert producer.call(remote.stats)["exports_open"] > 1000
        assert producer.call(remote.first_values, ["first"]) == [1.0]
        producer.call(remote.drop_all)
        producer.call(remote.wait_until_all_is_over)
        assert producer.call(remote.stats)["active_bytes"] < before["active_bytes"]


def test_positions_that_a_program_writes(peer: Peer) -> None:
    """Another size, offset, type and class, over the same memory."""
    tensor = sim.of(torch.arange(12, dtype=torch.int32))
    function, arguments = torch_reductions.reduce_tensor(tensor)
    written = (
        torch.nn.Parameter,
        torch.Size([2, 3]),
        (3, 1),
        6,
        *arguments[4:10],
        False,
        *arguments[11:],
    )
    peer.call(remote_tuples.open_all, ["t"], [pickle.dumps(written)])
    seen = peer.call(remote.describe, "t")
    assert (seen["type"], seen["shape"], seen["offset"]) == ("Parameter", (2, 3), 6)
    assert peer.call(remote.values, "t").tolist() == [[6, 7, 8], [9, 10, 11]]
    too_far = (*written[:3], 7, *written[4:])
    with pytest.raises(RuntimeError, match="not resizable"):
        function(*too_far)
    del tensor
    peer.call(remote.drop_all)


def test_tuples_inside_of_other_things(peer: Peer) -> None:
    """As a class of a framework carries them: pairs of function and arguments, through a pipe."""
    tensors = {"a": sim.full((3,), 1.0), "b": torch.nn.Parameter(sim.full((4,), 2.0))}
    pairs = {name: torch_reductions.reduce_tensor(tensor) for name, tensor in tensors.items()}
    peer.call(remote.keep, "pairs", types.SimpleNamespace(pairs=pairs))
    assert peer.call(remote_tuples.rebuild_pairs, "pairs") == {"a": 1.0, "b": 2.0}
    tensors.clear()
    pairs.clear()
    peer.call(remote.drop_all)


def test_a_pickled_message_is_opened_by_many(peer: Peer) -> None:
    """ForkingPickler's bytes, sent once to each of several readers."""
    tensor = sim.full((3,), 1.0)
    data = bytes(ForkingPickler.dumps({"weights": tensor}))
    with Peer() as other:
        for reader in (peer, other):
            assert reader.call(remote_tuples.loads_and_keep, "t", data) == [1.0, 1.0, 1.0]
        other.call(remote.drop, "t")
    del tensor
    peer.call(remote.drop, "t")
