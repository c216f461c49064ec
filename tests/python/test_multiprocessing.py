"""Queues, pipes and what travels through them, with no change to the program."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import remote
import sim
import torch
import torch.multiprocessing as mp
import torch_limbo
from peer import Peer

COUNT = 1000

pytestmark = pytest.mark.usefixtures("balanced")


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


def make_queue(kind: str) -> Any:
    context = mp.get_context("spawn")
    return context.SimpleQueue() if kind == "SimpleQueue" else context.Queue()


def close(queue: Any) -> None:
    queue.close()
    if hasattr(queue, "join_thread"):
        queue.join_thread()


def run_child(target: Any, *arguments: Any) -> Any:
    child = mp.get_context("spawn").Process(target=target, args=arguments)
    child.start()
    return child


def consume(queue: Any, answers: Any, count: int) -> None:
    answers.send(remote.check_from(queue, count))


def test_a_thousand_tensors_through_a_queue() -> None:
    queue = make_queue("Queue")
    ours, theirs = mp.get_context("spawn").Pipe()
    child = run_child(consume, queue, theirs, COUNT)
    theirs.close()
    remote.send_through(queue, COUNT)
    assert ours.recv() == []
    child.join(30)
    assert child.exitcode == 0
    ours.close()
    close(queue)
    child.close()


def consume_simple(queue: Any, answers: Any) -> None:
    answers.send([sim.read(queue.get()).tolist() for _ in range(3)])


def test_a_simple_queue() -> None:
    queue = make_queue("SimpleQueue")
    ours, theirs = mp.get_context("spawn").Pipe()
    child = run_child(consume_simple, queue, theirs)
    theirs.close()
    for number in range(3):
        queue.put(sim.full((2,), number))
    assert ours.recv() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    child.join(30)
    assert child.exitcode == 0
    ours.close()
    close(queue)
    child.close()


def test_a_pipe(peer: Peer) -> None:
    tensor = sim.full((10,), 6.0)
    receives = peer.call(remote.stats)["receives"]
    peer.call(remote.keep, "t", {"nested": [tensor]})
    del tensor
    assert peer.call(remote.stats)["receives"] == receives + 1
    assert bool((peer.call(remote.nested_values, "t") == 6.0).all())
    peer.call(remote.drop, "t")


def produce(queue: Any, count: int) -> None:
    remote.send_through(queue, count)


def test_the_last_messages_of_a_process_that_ends() -> None:
    queue = make_queue("Queue")
    child = run_child(produce, queue, 20)
    assert remote.check_from(queue, 20) == []
    child.join(30)
    assert child.exitcode == 0
    close(queue)
    child.close()


def doubled(tensor: torch.Tensor) -> torch.Tensor:
    return sim.of(sim.read(tensor) * 2)


@pytest.mark.parametrize("end", ["close", "terminate"])
def test_a_pool(end: str) -> None:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch_limbo"])
    pool = context.Pool(2)
    results = pool.map(doubled, [sim.full((100,), number) for number in range(8)])
    getattr(pool, end)()
    pool.join()
    # The workers have ended: by themselves, after all was opened, or by a signal.
    for number, tensor in enumerate(results):
        assert bool((sim.read(tensor) == 2 * number).all())
    del tensor
    results.clear()


def test_a_manager_sends_on() -> None:
    with mp.get_context("spawn").Manager() as manager:
        queue = manager.Queue()
        tensor = sim.full((3,), 1.0)
        queue.put(tensor)
        sim.fill(tensor, 2.0)  # what the manager has is the same memory
        torch_limbo.collect()
        back = queue.get()
        assert bool((sim.read(back) == 2.0).all())
        del tensor
        assert bool((sim.read(back) == 2.0).all())
        del back


def test_one_tensor_in_one_message_twice(peer: Peer) -> None:
    tensor = sim.full((10,), 6.0)
    peer.call(remote.keep, "a", tensor)
    peer.call(remote.keep, "b", tensor)
    assert peer.call(remote.same_storage, "a", "b")
    sim.fill(tensor, 5.0)
    peer.call(remote.keep, "c", tensor)  # behind the write
    for name in "abc":
        assert bool((peer.call(remote.values, name) == 5.0).all())
    del tensor
    peer.call(remote.drop_all)


def test_a_parameter_and_an_empty_tensor(peer: Peer) -> None:
    weight = torch.nn.Parameter(sim.full((2, 3), 1.5))
    peer.call(remote.keep, "weight", weight)
    seen = peer.call(remote.describe, "weight")
    assert (seen["type"], seen["requires_grad"], seen["shape"]) == ("Parameter", True, (2, 3))
    peer.call(remote.keep, "empty", sim.empty(0, 4, dtype=torch.int16))
    seen = peer.call(remote.describe, "empty")
    assert (seen["shape"], seen["dtype"], seen["device"]) == ((0, 4), "torch.int16", "cuda:0")
    peer.call(remote.keep, "scalar", sim.full((), 3.0))
    assert peer.call(remote.values, "scalar").item() == 3.0
    peer.call(remote.keep, "expanded", sim.full((1,), 3.0).expand(4, 5))
    seen = peer.call(remote.describe, "expanded")
    assert (seen["shape"], seen["stride"]) == ((4, 5), (0, 0))
    del weight
    peer.call(remote.drop_all)


def test_storages(peer: Peer) -> None:
    tensor = sim.of(torch.arange(6, dtype=torch.float32))
    peer.call(remote.keep, "tensor", tensor)
    peer.call(remote.keep, "untyped", tensor.untyped_storage())
    peer.call(remote.keep, "typed", tensor._typed_storage())
    assert peer.call(remote.storage_facts, "untyped") == ("UntypedStorage", 24, True)
    assert peer.call(remote.storage_facts, "typed") == ("TypedStorage", 24, True)
    del tensor
    peer.call(remote.drop_all)


def test_cpu_tensors_take_torchs_own_way(peer: Peer) -> None:
    sends = torch_limbo.stats()["sends"]
    peer.call(remote.keep, "cpu", torch.arange(5))
    assert peer.call(remote.describe, "cpu")["device"] == "cpu"
    assert torch_limbo.stats()["sends"] == sends
    peer.call(remote.drop, "cpu")


def test_a_non_leaf_is_refused_as_by_torch() -> None:
    tensor = sim.full((4,), 1.0).requires_grad_().view(2, 2)
    with pytest.raises(RuntimeError, match="requires_grad"):
        ForkingPickler.dumps(tensor)


def test_put_and_get_in_one_process() -> None:
    queue = make_queue("Queue")
    tensor = sim.full((10,), 6.0)
    opens = torch_limbo.stats()["opens"]
    queue.put(tensor)
    got = queue.get(timeout=30)
    assert got.data_ptr() == tensor.data_ptr()
    assert torch_limbo.stats()["opens"] == opens
    sim.fill(tensor, 9.0)
    assert bool((sim.read(got) == 9.0).all())
    del tensor
    assert bool((sim.read(got) == 9.0).all())
    del got
    close(queue)
