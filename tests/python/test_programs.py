"""Programs of torch.multiprocessing as people write them, unchanged, on the simulated device."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from typing import Any

import pytest
import remote
import sim
import torch
import torch.multiprocessing as mp
import torch.utils.data
import torch_limbo
from peer import Peer

pytestmark = pytest.mark.usefixtures("balanced")

WAIT_S = 60


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


def context_of(method: str = "forkserver") -> Any:
    context: Any = mp.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch", "torch_limbo"])
    return context


def end(*processes: Any) -> None:
    for process in processes:
        process.join(WAIT_S)
        assert process.exitcode == 0
        process.close()


def all_equal(tensor: torch.Tensor, value: float) -> bool:
    return bool((sim.read(tensor) == value).all())


def work_off(queue: Any, wrong: Any) -> None:
    while (item := queue.get(timeout=WAIT_S)) is not None:
        number, tensor = item
        if not all_equal(tensor, number):
            wrong.send(number)
        del item, tensor
        queue.task_done()
    queue.task_done()
    wrong.send(None)


def test_a_joinable_queue() -> None:
    context = context_of()
    queue = context.JoinableQueue()
    ours, theirs = context.Pipe()
    worker = context.Process(target=work_off, args=(queue, theirs))
    worker.start()
    for number in range(50):
        queue.put((number, sim.full((1 + number,), number)))
    queue.join()  # all that was put has been opened
    torch_limbo.collect()
    assert torch_limbo.stats()["in_flight"] == 0
    queue.put(None)
    queue.join()
    assert ours.recv() is None
    end(worker)
    ours.close()
    theirs.close()
    queue.close()
    queue.join_thread()


class Adds(mp.get_context("spawn").Process):  # type: ignore[misc]
    """A process that keeps a tensor as its own attribute."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(daemon=True)
        self.tensor = tensor

    def run(self) -> None:
        sim.fill(self.tensor, float(sim.read(self.tensor)[0]) + 1)
        torch.ops.limbo.sim_synchronize(0)


def add_to(first: torch.Tensor, *, others: dict[str, list[torch.Tensor]]) -> None:
    for tensor in (first, *others["list"]):
        sim.fill(tensor, float(sim.read(tensor).flatten()[0]) + 1)
    torch.ops.limbo.sim_synchronize(0)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_arguments_of_a_process(method: str) -> None:
    tensors = [sim.full((3, number), 4.0) for number in range(1, 4)]
    child = context_of(method).Process(
        target=add_to, args=(tensors[0],), kwargs={"others": {"list": tensors[1:]}}
    )
    child.start()
    end(child)
    for tensor in tensors:
        assert all_equal(tensor, 5.0)


def test_an_attribute_of_a_process() -> None:
    tensor = sim.full((5,), 1.0)
    child = Adds(tensor)
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == 0
    assert all_equal(tensor, 2.0)
    del child


def fill_own_row(rank: int, rows: list[torch.Tensor], queue: Any) -> None:
    sim.fill(rows[rank], rank + 10)
    torch.ops.limbo.sim_synchronize(0)
    queue.put((rank, sim.full((4,), rank)))


def test_spawn() -> None:
    base = sim.full((2, 8), 0.0)
    queue = context_of("spawn").SimpleQueue()
    children = mp.spawn(fill_own_row, args=([base[0], base[1]], queue), nprocs=2, join=False)
    results = dict(queue.get() for _ in range(2))
    while not children.join():
        pass
    for rank in range(2):
        assert all_equal(base[rank], rank + 10)
        assert all_equal(results[rank], rank)
    del children
    results.clear()
    queue.close()


def fails(rank: int, tensor: torch.Tensor) -> None:
    torch_limbo.share(tensor, consumers=-rank)


def test_an_error_of_a_spawned_process() -> None:
    with pytest.raises(mp.ProcessRaisedException, match="LimboError: consumers cannot be 0"):
        mp.spawn(fails, args=(sim.full((1,), 1.0),), nprocs=1)


class OnTheGpu(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Makes its items where it runs, or gives views of what it was given."""

    def __init__(self, base: torch.Tensor | None = None) -> None:
        self.base = base

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        data = sim.full((3,), index) if self.base is None else self.base[index]
        return {"index": index, "data": data}


def as_it_is(items: list[Any]) -> list[Any]:
    return items


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_data_loader(persistent: bool) -> None:
    loader = torch.utils.data.DataLoader(
        OnTheGpu(),
        batch_size=3,
        num_workers=2,
        collate_fn=as_it_is,
        multiprocessing_context=context_of(),
        persistent_workers=persistent,
    )
    for _ in range(2):
        seen = [item for batch in loader for item in batch]
        assert [item["index"] for item in seen] == list(range(12))
        for item in seen:
            assert all_equal(item["data"], item["index"])  # also where its worker has ended
        del item
        seen.clear()
    del loader


def test_a_data_set_on_the_gpu_comes_back() -> None:
    base = sim.of(torch.arange(12, dtype=torch.float32).view(12, 1).expand(12, 3).contiguous())
    loader = torch.utils.data.DataLoader(
        OnTheGpu(base),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=context_of(),
    )
    for item in loader:
        # A view of this process's own memory, sent here and back.
        assert item["data"].untyped_storage().data_ptr() == base.data_ptr()
        assert all_equal(item["data"], float(item["index"]))
    del item, loader


def summed(tensors: list[torch.Tensor]) -> torch.Tensor:
    return sim.of(sum(sim.read(tensor) for tensor in tensors))  # type: ignore[arg-type]


def refuses(tensor: torch.Tensor) -> None:
    torch_limbo.share(tensor, ttl=-1)


def test_a_pool_of_concurrent_futures() -> None:
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context_of()) as pool:
        futures = [
            pool.submit(summed, [sim.full((5,), number), sim.full((5,), 1.0)])
            for number in range(10)
        ]
        for number, future in enumerate(futures):
            assert all_equal(future.result(timeout=WAIT_S), number + 1)
        with pytest.raises(torch_limbo.LimboError) as caught:
            pool.submit(refuses, sim.full((1,), 1.0)).result(timeout=WAIT_S)
        assert caught.value.code == "bad_argument"
    del future
    futures.clear()


def test_every_way_into_a_pool() -> None:
    with context_of().Pool(2) as pool:
        one = pool.apply(summed, ([sim.full((5,), 1.0)],))
        later = pool.apply_async(summed, ([sim.full((5,), 2.0)],))
        many = list(pool.imap(summed, [[sim.full((5,), number)] for number in range(6)]))
        loose = sorted(
            float(sim.read(tensor)[0])
            for tensor in pool.imap_unordered(summed, [[sim.full((5,), n)] for n in range(6)])
        )
        stars = pool.starmap(summed, [([sim.full((5,), 3.0)],)])
        assert all_equal(one, 1.0)
        assert all_equal(later.get(WAIT_S), 2.0)
        assert [float(sim.read(tensor)[0]) for tensor in many] == [0, 1, 2, 3, 4, 5]
        assert loose == [0, 1, 2, 3, 4, 5]
        assert all_equal(stars[0], 3.0)
        pool.close()
        pool.join()
    del one, later, many, stars


def take(queue: Any, answers: Any) -> None:
    tensor = queue.get(timeout=WAIT_S)
    answers.put(float(sim.read(tensor)[0]))
    del tensor


def test_a_broker_between_two_processes() -> None:
    context = context_of()
    with context.Manager() as manager:
        queue, answers = manager.Queue(), manager.Queue()
        for number in range(3):
            queue.put(sim.full((100,), number))  # freed here; the broker holds it
        takers = [context.Process(target=take, args=(queue, answers)) for _ in range(3)]
        for taker in takers:
            taker.start()
        assert sorted(answers.get(timeout=WAIT_S) for _ in takers) == [0.0, 1.0, 2.0]
        end(*takers)


def test_what_a_manager_keeps(peer: Peer) -> None:
    with context_of().Manager() as manager:
        shelf, row = manager.dict(), manager.list()
        shelf["weights"] = sim.full((100,), 7.0)
        row.append(sim.full((100,), 8.0))
        for _ in range(2):
            assert all_equal(shelf["weights"], 7.0)
            assert all_equal(row[0], 8.0)
        peer.call(remote.keep, "t", shelf["weights"])
        assert bool((peer.call(remote.values, "t") == 7.0).all())
        del shelf["weights"]
        row.pop()
        peer.call(remote.drop, "t")


def test_the_standard_librarys_own_context() -> None:
    context = multiprocessing.get_context("forkserver")
    queue: Any = context.Queue()
    answers: Any = context.Queue()
    child = context.Process(target=take, args=(queue, answers))
    child.start()
    queue.put(sim.full((10,), 6.0))
    assert answers.get(timeout=WAIT_S) == 6.0
    end(child)
    for each in (queue, answers):
        each.close()
        each.join_thread()


BIG = 4 * 1024 * 1024


def test_every_send_waits_for_its_own_writes(peer: Peer) -> None:
    """Also of a storage that the receiver has: what it reads is not older than the send."""
    tensor = sim.full((BIG,), 0.0)
    peer.call(remote.keep, "first", tensor)
    stream = torch.ops.limbo.sim_new_stream(0)
    for number in range(1, 9):
        before = torch.ops.limbo.sim_set_stream(stream if number % 2 else 0, 0)
        for value in (-1.0, -2.0, number):
            sim.fill(tensor, value)  # long enough to be read too early
        peer.call(remote.keep, "again", tensor)
        assert peer.call(remote.same_storage, "first", "again")
        values = peer.call(remote.ends, "again")
        torch.ops.limbo.sim_set_stream(before, 0)
        assert values == [number, number], "read before the send's own writes"
    peer.call(remote.drop_all)
    del tensor


def test_interleaved_storages_stay_apart(peer: Peer) -> None:
    tensors = [sim.full((50,), number) for number in range(4)]
    for step in range(3):
        for number, tensor in enumerate(tensors):
            peer.call(remote.keep, f"{number} {step}", (tensor[:10], tensor[20:]))
    assert peer.call(remote.storages_of, [f"{n} {s}" for n in range(4) for s in range(3)]) == 4
    del tensor
    tensors.clear()
    peer.call(remote.drop_all)
