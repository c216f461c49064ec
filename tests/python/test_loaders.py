"""DataLoaders whose workers make batches on the GPU, and how those workers end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sim
import sim_torch
import torch
import torch.utils.data as data
import torch_limbo
from balance import wait_for_empty_limbo, wait_until
from torch_limbo import workers

assert sim_torch.is_in_place()  # torch's own rebuilding of storages makes tensors

pytestmark = pytest.mark.usefixtures("balanced")

#: The exit waits so long for what is unopened, unless it is taken back.
LONG_MS = 60_000


class Numbered(data.Dataset[torch.Tensor]):
    """Item `i` is full of `i`."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return sim.full((1000,), float(index))


class Streamed(data.IterableDataset[torch.Tensor]):
    """Each worker says by itself when it has no more."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(6):
            yield sim.full((1000,), float(index))


class Slow(data.Dataset[torch.Tensor]):
    """Its worker's GPU has work left when the last item has been sent."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        item = sim.full((1 << 24,), 0.0)
        for _ in range(10):
            sim.fill(item, 1.0)
        sim.fill(item, float(index + 7))
        return item


def only(items: list[torch.Tensor]) -> torch.Tensor:
    return items[0]


def prepare(_: int) -> None:
    torch_limbo.enable(exit_drain_ms=LONG_MS)


def loader(dataset: Any, method: str) -> Any:
    return data.DataLoader(
        dataset,
        num_workers=1,
        prefetch_factor=4,
        collate_fn=only,
        worker_init_fn=prepare,
        multiprocessing_context=method,
    )


@pytest.fixture(params=["spawn", "forkserver"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    # A worker that has not ended by then is terminated by torch.
    monkeypatch.setattr(data._utils, "MP_STATUS_CHECK_INTERVAL", LONG_MS / 1000 - 20)
    name: str = request.param
    return name


def values(items: list[torch.Tensor]) -> list[set[float]]:
    return [set(sim.read(item).tolist()) for item in items]


def test_a_loader_that_is_left_early_is_not_waited_for(method: str) -> None:
    items = iter(loader(Numbered(), method))
    first = next(items)
    (worker,) = items._workers
    made = items._worker_result_queue
    wait_until(lambda: not made.empty(), "it makes nothing in advance")
    del items
    assert worker.exitcode == 0, "it waited for what nobody will open, and was terminated"
    assert values([first]) == [{0.0}]


@pytest.mark.parametrize("dataset", [Numbered(), Streamed()], ids=["indexed", "streamed"])
def test_a_loader_that_is_read_to_the_end(method: str, dataset: Any) -> None:
    items = iter(loader(dataset, method))
    (worker,) = items._workers
    made = items._worker_result_queue
    read: list[torch.Tensor] = []
    for item in items:
        if len(read) < 3:
            wait_until(lambda: not made.empty(), "it is not ahead")
        read.append(item)
    worker.join(60)
    assert worker.exitcode == 0
    assert values(read) == [{float(index)} for index in range(len(read))]
    assert len(read) == (12 if isinstance(dataset, Numbered) else 6)


def test_work_that_a_worker_has_queued_for_its_last_batch_is_done(method: str) -> None:
    (item,) = list(loader(Slow(), method))
    assert values([item]) == [{7.0}]


def test_a_worker_remembers_the_last_messages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "get_worker_info", lambda: "one")
    monkeypatch.setattr(workers, "_REMEMBERED", 4)
    monkeypatch.setattr(workers, "_forget_at", 8)
    tensor = sim.full((10,), 1.0)
    for _ in range(30):
        message = torch.ops.limbo.share(tensor)
        workers.note(message)
        torch.ops.limbo.withdraw(message)
    assert 4 <= len(workers._sent) < 8
    unopened = [torch.ops.limbo.share(tensor) for _ in range(30)]
    for message in unopened:
        workers.note(message)
    assert {id(message) for message in unopened} <= {id(message) for message in workers._sent}
    monkeypatch.setattr(workers, "_ends", False)
    workers.take_back_unopened()
    late = torch.ops.limbo.share(tensor)
    workers.note(late)
    assert not workers._sent
    torch_limbo.collect()
    assert torch_limbo.stats()["in_flight"] == 0
    del tensor
    wait_for_empty_limbo()
