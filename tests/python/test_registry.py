"""Tensors under names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import remote
import remote_registry
import sim
import torch
import torch_limbo
from balance import wait_for_empty_limbo, wait_until
from peer import Peer
from torch_limbo import LimboError, Registry

SPACE = "tests"


@pytest.fixture(scope="module")
def named_once(shared_peer: Peer) -> None:
    """Both have published before any test compares: the names' files stay open."""
    shared_peer.call(remote_registry.publish, SPACE, "first", (1,), 1.0)
    assert shared_peer.call(remote_registry.unpublish, SPACE, "first")
    with Registry(SPACE) as registry:
        registry.publish("first", sim.full((1,), 1.0))


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


@pytest.fixture(autouse=True)
def nothing_stays_published(named_once: None, balanced: None) -> Iterator[None]:  # noqa: ARG001
    yield
    assert Registry(SPACE).names() == []


def code_of(call: object, *arguments: object) -> tuple[str, str]:
    with pytest.raises(LimboError) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value.code, str(caught.value)


def test_publish_acquire_release(peer: Peer) -> None:
    registry = Registry(SPACE)
    registry.publish("weights", sim.full((4, 5), 2.5))  # only the registry keeps it
    got = peer.call(remote_registry.acquire, SPACE, "weights", "w")
    assert torch.equal(got, torch.full((4, 5), 2.5))
    peer.call(remote.fill, "w", 7.0)  # the same memory
    peer.call(remote.values, "w")
    mine = registry.acquire("weights")
    assert bool((sim.read(mine) == 7.0).all())
    del mine
    assert registry.unpublish("weights")
    assert not registry.unpublish("weights")
    assert code_of(registry.acquire, "weights")[0] == "no_such_name"
    torch_limbo.collect()
    assert torch_limbo.stats()["limbo_blocks"] == 1  # who has it keeps it
    assert bool((peer.call(remote.values, "w") == 7.0).all())
    assert peer.call(remote_registry.release, "w") == (0, 0)
    wait_for_empty_limbo()  # although the other process still names the tensor
    assert peer.call(remote_registry.release, "w") == (0, 0)
    peer.call(remote.drop, "w")


def test_the_owner_is_another_process(peer: Peer) -> None:
    peer.call(remote_registry.publish, SPACE, "theirs", (10,), 3.0)
    registry = Registry(SPACE)
    (found,) = registry.names()
    assert (found.name, found.owner.pid) == ("theirs", peer.pid)
    assert found.owner in torch_limbo.processes()
    tensor = registry.acquire("theirs")
    again = registry.acquire("theirs")
    assert again.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    assert bool((sim.read(tensor) == 3.0).all())
    registry.release(again)
    assert again.numel() == 0
    assert bool((sim.read(tensor) == 3.0).all())
    assert code_of(registry.publish, "mine", tensor)[0] == "not_lendable"
    assert code_of(registry.publish, "theirs", sim.full((1,), 1.0))[0] == "name_taken"
    assert not registry.unpublish("theirs")  # it is another's
    registry.release(tensor)
    assert peer.call(remote_registry.unpublish, SPACE, "theirs")


def test_what_a_tensor_is_beside_its_values(peer: Peer) -> None:
    registry = Registry(SPACE)
    base = sim.of(torch.arange(24, dtype=torch.int32))
    tensors = {
        "transposed": base.view(4, 6).t(),
        "offset": base[5:9],
        "scalar": base[3],
        "weight": torch.nn.Parameter(sim.full((2, 2), 1.0)),
        "frozen": torch.nn.Parameter(sim.full((2, 2), 1.0), requires_grad=False),
    }
    for name, tensor in tensors.items():
        registry.publish(name, tensor)
        got = peer.call(remote_registry.acquire, SPACE, name, name)
        assert torch.equal(got, sim.read(tensor)), name
        seen = peer.call(remote.describe, name)
        assert seen["type"] == type(tensor).__name__, name
        assert seen["shape"] == tuple(tensor.shape), name
        assert seen["stride"] == tensor.stride(), name
        assert seen["offset"] == tensor.storage_offset(), name
        assert seen["requires_grad"] == tensor.requires_grad, name
    assert peer.call(remote.same_storage, "transposed", "offset")
    for name in tensors:
        registry.unpublish(name)
    del tensor, base
    tensors.clear()
    peer.call(remote.drop_all)


def test_many_processes_and_acquires(peer: Peer) -> None:
    with Registry(SPACE) as registry:
        registry.publish("weights", sim.full((100,), 4.0))
        with Peer() as other:
            for process in (peer, other):
                process.begin(remote_registry.acquire_many, SPACE, "weights", 50)
            for process in (peer, other):
                assert process.result() == [4.0] * 50
        assert [found.name for found in registry.names()] == ["weights"]
    assert registry.names() == []


def test_spaces_do_not_meet(peer: Peer) -> None:
    with Registry(SPACE) as one, Registry(SPACE + "2") as other:
        one.publish("weights", sim.full((1,), 1.0))
        other.publish("weights", sim.full((1,), 2.0))
        assert peer.call(remote_registry.acquire_many, SPACE, "weights", 1) == [1.0]
        assert peer.call(remote_registry.acquire_many, SPACE + "2", "weights", 1) == [2.0]
        assert [found.name for found in one.names()] == ["weights"]
        everything = {found.name for found in Registry().names()}
        assert everything == {f"{SPACE}:weights", f"{SPACE}2:weights"}
        assert (one.space, Registry().space) == (SPACE, "")


def test_a_name_is_published_anew(peer: Peer) -> None:
    with Registry(SPACE) as registry:
        for step in range(3):
            registry.publish("weights", sim.full((10,), step))
            assert code_of(registry.publish, "weights", sim.full((1,), 9.0))[0] == "name_taken"
            got = peer.call(remote_registry.acquire, SPACE, "weights", str(step))
            assert bool((got == step).all())
            registry.unpublish("weights")
        for step in range(3):
            assert bool((peer.call(remote.values, str(step)) == step).all())
    peer.call(remote.drop_all)


def test_the_same_tensor_twice_is_kept() -> None:
    with Registry(SPACE) as registry:
        tensor = sim.full((10,), 3.0)
        registry.publish("weights", tensor)
        assert code_of(registry.publish, "weights", tensor)[0] == "name_taken"
        del tensor
        assert bool((sim.read(registry.acquire("weights")) == 3.0).all())


def test_an_owner_that_dies() -> None:
    registry = Registry(SPACE)
    with Peer() as owner:
        owner.call(remote_registry.publish, SPACE, "weights", (10,), 3.0)
        tensor = registry.acquire("weights")
        owner.call(sim.synchronize)  # what a killed process had queued goes with it
        owner.kill()
    assert bool((sim.read(tensor) == 3.0).all())
    assert code_of(registry.acquire, "weights")[0] == "no_such_name"
    assert registry.names() == []
    registry.publish("weights", sim.full((10,), 4.0))  # the name of the dead is free
    assert bool((sim.read(registry.acquire("weights")) == 4.0).all())
    assert registry.unpublish("weights")
    del tensor


def test_an_owner_that_ends() -> None:
    with Peer("spawn") as owner:
        owner.call(remote_registry.publish, SPACE, "weights", (10,), 3.0)
        tensor = Registry(SPACE).acquire("weights")
    assert Registry(SPACE).names() == []
    assert bool((sim.read(tensor) == 3.0).all())
    del tensor


def test_holders_and_reap(peer: Peer) -> None:
    registry = Registry(SPACE)
    registry.publish("weights", sim.full((1000,), 3.0))
    swept = torch_limbo.stats()["leases_swept"]
    with Peer() as reader:
        reader.call(remote_registry.acquire, SPACE, "weights", "w")
        for holders in (registry.holders("weights"), peer_sees_holders(peer)):
            (holder,) = [holder for holder in holders if holder.pid == reader.pid]
            assert (holder.state, holder.claims) == ("connected", 1)
        assert code_of(registry.holders, "nobody")[0] == "no_such_name"
        reader.kill()
    wait_until(lambda: not _holds(reader.pid), "the dead reader still holds")
    assert registry.reap() == torch_limbo.Reaped(0, 0)  # it has come back by itself
    assert torch_limbo.stats()["leases_swept"] == swept + 1
    assert registry.unpublish("weights")


def _holds(pid: int) -> bool:
    return any(holder.pid == pid for holder in torch_limbo.holders())


def peer_sees_holders(peer: Peer) -> list[torch_limbo.Holder]:
    holders: list[torch_limbo.Holder] = peer.call(remote_registry.holders, SPACE, "weights")
    return holders


def test_other_processes_are_asked(peer: Peer) -> None:
    tensor = torch_limbo.receive(peer.call(remote.make, "t", (10,), 2.0))
    theirs = peer.call(remote_registry.own_process)
    assert theirs in torch_limbo.processes()
    (holder,) = [holder for holder in torch_limbo.holders(theirs) if holder.pid == os.getpid()]
    assert holder.claims == 1
    assert torch_limbo.reap(process=theirs) == torch_limbo.Reaped(0, 0)
    stranger = torch_limbo.LendingProcess(theirs.pid, "0" * 32, theirs.directory)
    for call in (torch_limbo.holders, lambda process: torch_limbo.reap(process=process)):
        assert code_of(call, stranger)[0] == "producer_exited"
    del tensor
    peer.call(remote.drop, "t")


@pytest.mark.parametrize("name", ["", "a/b", "n" * 300, "\ud800", 7, None, b"x", "a\0b"])
def test_names_that_are_none(name: object) -> None:
    registry = Registry(SPACE)
    tensor = sim.full((1,), 1.0)
    for call in (
        lambda: registry.publish(name, tensor),  # type: ignore[arg-type]
        lambda: registry.acquire(name),  # type: ignore[arg-type]
        lambda: registry.unpublish(name),  # type: ignore[arg-type]
    ):
        assert code_of(call)[0] == "bad_argument"


def test_what_cannot_be_published() -> None:
    registry = Registry(SPACE)
    assert code_of(registry.publish, "n", torch.ones(3))[0] == "not_lendable"
    assert code_of(registry.publish, "n", sim.empty(0, 3))[0] == "not_lendable"
    assert code_of(registry.publish, "n", [1])[0] == "bad_argument"
    tensor = sim.full((4,), 1.0)
    assert code_of(registry.publish, "n", tensor, -1)[0] == "bad_argument"
    assert code_of(registry.publish, "n", tensor.requires_grad_().view(2, 2))[0] == "bad_argument"
    assert code_of(registry.release, tensor)[0] == "bad_argument"
    assert code_of(registry.release, torch.ones(3))[0] == "bad_argument"
    for space in ("a/b", ".hidden"):
        assert code_of(Registry(space).publish, "n", sim.full((1,), 1.0))[0] == "bad_argument"
    for space in (7, "\ud800"):
        assert code_of(Registry, space)[0] == "bad_argument"


def test_a_device_that_does_not_exist_promises_nothing() -> None:
    with Registry(SPACE) as registry:
        registry.publish("weights", sim.full((1,), 1.0))
        assert code_of(registry.acquire, "weights", "cpu")[0] == "bad_argument"
        assert torch_limbo.stats()["in_flight"] == 0


def test_threads_publish_one_name() -> None:
    registry = Registry(SPACE)
    winners: list[int] = []
    codes: list[str] = []
    start = threading.Barrier(4)

    def publish(number: int) -> None:
        tensor = sim.full((10,), number)
        start.wait()
        try:
            registry.publish("weights", tensor)
        except LimboError as error:
            codes.append(error.code)
        else:
            winners.append(number)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = winners
    assert codes == ["name_taken"] * 3
    assert bool((sim.read(registry.acquire("weights")) == winner).all())
    assert registry.unpublish("weights")
