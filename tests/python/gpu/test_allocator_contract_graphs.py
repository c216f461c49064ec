"""CUDA graphs: private memory, pools that are shared, side streams, errors, destruction."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch
from contract import (
    MIB,
    busy,
    captured,
    chain,
    check_statistics,
    lies_in,
    memory_use,
    private_pools,
    private_segments,
    segments,
    settle,
    stat,
    warm_up,
)
from torch.amp.grad_scaler import GradScaler

pytestmark = pytest.mark.usefixtures("allocator")


def test_a_simple_capture() -> None:
    start = torch.zeros(1000, device="cuda")
    graph, result = captured(chain, start)
    for value in range(5):
        start.fill_(value)
        graph.replay()
        assert bool((result == value + 8).all())


def test_begin_end_reset_and_capture_again() -> None:
    others = len(private_segments())
    stream = warm_up(lambda: chain(torch.zeros(1000, device="cuda")))
    graph = torch.cuda.CUDAGraph()
    for steps in (3, 5):
        with torch.cuda.stream(stream):
            start = torch.full((1000,), 1.0, device="cuda")
            torch.cuda.synchronize()
            graph.capture_begin()
            result = chain(start, steps)
            graph.capture_end()
        graph.replay()
        torch.cuda.synchronize()
        assert bool((result == steps + 1).all())
        del result, start
        graph.reset()
    del graph
    settle()
    assert len(private_segments()) == others


def test_a_graphs_memory_is_its_own() -> None:
    """Nothing that eager code allocates comes to lie in the memory of a graph."""
    start = torch.zeros(MIB, device="cuda")
    graph, result = captured(chain, start)
    pool = graph.pool()
    assert lies_in(result.data_ptr(), pool)
    assert not lies_in(start.data_ptr(), pool)
    reserved = torch.cuda.memory_reserved()
    others = [torch.full((MIB,), 77.0, device="cuda") for _ in range(20)]
    assert not any(lies_in(tensor.data_ptr(), pool) for tensor in others)
    assert torch.cuda.memory_reserved() > reserved, "freed blocks of the graph are not eager's"
    start.fill_(2)
    graph.replay()
    assert bool((result == 10).all())
    assert all(bool((tensor == 77).all()) for tensor in others)
    check_statistics()


@pytest.mark.parametrize("share", [False, True])
def test_two_graphs_one_after_the_other(share: bool) -> None:
    others = private_pools()
    start = torch.zeros(1000, device="cuda")
    first, middle = captured(chain, start, 3)
    second, end = captured(chain, middle, 4, pool=first.pool() if share else None)
    assert (first.pool() == second.pool()) == share
    for value in range(5):
        start.fill_(value)
        first.replay()
        second.replay()
        assert bool((end == value + 7).all())
    assert len(private_pools() - others) == (1 if share else 2)
    check_statistics()


def test_a_shared_pool_takes_less() -> None:
    def reserve(share: bool) -> int:
        settle()
        before = torch.cuda.memory_reserved()
        start = torch.zeros(4 * MIB, device="cuda")
        pool = torch.cuda.graph_pool_handle() if share else None
        graphs = [captured(lambda: chain(start).sum(), pool=pool) for _ in range(3)]
        settle()
        used = torch.cuda.memory_reserved() - before
        del graphs
        return used

    assert reserve(True) < reserve(False)


def test_three_graphs_share_and_results_in_between_are_dropped() -> None:
    """A later capture may use what earlier captures of its pool have let go of."""
    start = torch.zeros(4 * MIB, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    first, one = captured(torch.add, start, 1, pool=pool)
    second, two = captured(torch.mul, one, 2, pool=pool)
    address = one.data_ptr()
    del one
    third, three = captured(torch.add, two, 5, pool=pool)
    assert three.data_ptr() == address
    start.fill_(3)
    for graph in (first, second, third):  # the order of the captures
        graph.replay()
    assert bool((three == (3 + 1) * 2 + 5).all())


def test_graphs_that_share_nothing_run_side_by_side() -> None:
    start = torch.zeros(MIB, device="cuda")
    first, one = captured(chain, start, 20)
    second, two = captured(chain, start, 30)
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    for value in range(5):
        start.fill_(value)
        for stream, graph in zip(streams, (first, second), strict=True):
            with busy(stream, 1_000_000):
                graph.replay()
        torch.cuda.synchronize()
        assert bool((one == value + 20).all())
        assert bool((two == value + 30).all())


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_graphs_of_one_pool_go_in_any_order(order: tuple[int, ...]) -> None:
    before = memory_use()
    start = torch.zeros(MIB, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    made: dict[int, Any] = {
        index: captured(chain, start, index + 1, pool=pool) for index in range(3)
    }
    for index in order:
        del made[index]
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        for other, (graph, result) in made.items():
            start.fill_(other)
            graph.replay()
            assert bool((result == 2 * other + 1).all())
        graph = result = None
    check_statistics()
    del start
    settle()
    assert memory_use() == before


def test_a_result_outlives_its_graph() -> None:
    before = memory_use()
    start = torch.zeros(4 * MIB, device="cuda")
    graph, result = captured(chain, start)
    graph.replay()
    pool = graph.pool()
    del graph
    settle()
    others = [torch.full((4 * MIB,), 5.0, device="cuda") for _ in range(4)]
    assert bool((result == 8).all())
    assert len(segments(pool)) == 1, "what is free of the pool goes back, the rest stays"
    check_statistics()
    del result, others, start
    settle()
    assert segments(pool) == []
    assert memory_use() == before


@pytest.mark.parametrize(
    ("elements", "segment_bytes", "count", "kind"),
    [
        (512 * 1024 // 4, 2 * MIB, 1, "small"),
        (2 * MIB // 4, 20 * MIB, 1, "large"),
        (12 * MIB // 4, 12 * MIB, 2, "large"),
    ],
)
def test_memory_of_a_graph_in_the_snapshot(
    elements: int, segment_bytes: int, count: int, kind: str
) -> None:
    start = torch.zeros(elements, device="cuda")
    before = stat("reserved_bytes", f"{kind}_pool")
    graph, result = captured(chain, start)
    pool = graph.pool()
    found = segments(pool)
    assert [segment["total_size"] for segment in found] == [segment_bytes] * count
    assert {segment["segment_type"] for segment in found} == {kind}
    assert sum(segment["active_size"] for segment in found) == elements * 4
    assert sum(segment["requested_size"] for segment in found) == elements * 4
    assert stat("reserved_bytes", f"{kind}_pool") - before >= segment_bytes * count
    check_statistics()
    graph.replay()
    torch.cuda.synchronize()
    assert bool((result == 8).all())
    del graph
    settle()
    assert bool((result == 8).all())
    assert [segment["total_size"] for segment in segments(pool)] == [segment_bytes]
    check_statistics()


def test_random_numbers_in_a_graph() -> None:
    def work() -> torch.Tensor:
        return torch.randn(1000, device="cuda") + torch.rand(1000, device="cuda")

    torch.cuda.manual_seed(7)
    graph, result = captured(work)
    torch.cuda.manual_seed(11)
    eager = [work() for _ in range(3)]
    torch.cuda.manual_seed(11)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(result.clone())
    for one, other in zip(eager, replayed, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(replayed[0], replayed[1])


def test_graphs_made_again_and_again_take_no_more() -> None:
    start = torch.zeros(256, 256, device="cuda")
    uses = []
    for _ in range(5):
        graph, result = captured(lambda: (start @ start + torch.rand_like(start)).sum())
        graph.replay()
        torch.cuda.synchronize()
        del graph, result
        settle()
        uses.append(memory_use())
    assert uses[1:] == [uses[1]] * 4


def small_network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.0), torch.nn.Linear(128, 8)
    ).cuda()


@pytest.mark.parametrize("shared_pool", [False, True])
def test_graphed_callables_train_as_eager_ones(shared_pool: bool) -> None:
    generator = torch.Generator(device="cuda").manual_seed(5)
    inputs = [torch.randn(32, 64, device="cuda", generator=generator) for _ in range(6)]
    targets = [torch.randn(32, 8, device="cuda", generator=generator) for _ in range(6)]

    def train(model: Any, parameters: list[torch.nn.Parameter]) -> list[float]:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        losses = []
        for data, target in zip(inputs, targets, strict=True):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.mse_loss(model(data), target)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        return losses

    eager = small_network()
    expected = train(eager, list(eager.parameters()))
    network = small_network()
    parameters = list(network.parameters())
    pool = torch.cuda.graph_pool_handle() if shared_pool else None
    graphed = torch.cuda.make_graphed_callables(
        network, (torch.randn(32, 64, device="cuda"),), pool=pool
    )
    assert train(graphed, parameters) == pytest.approx(expected, rel=1e-5)
    del graphed, network, parameters, eager
    settle()


def test_a_whole_training_step_with_a_scaler_in_a_graph() -> None:
    model = small_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    scaler = GradScaler("cuda", init_scale=128.0)
    data = torch.randn(32, 64, device="cuda")
    target = torch.randn(32, 8, device="cuda")

    def step() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            loss = torch.nn.functional.mse_loss(model(data), target)
        scaler.scale(loss).backward()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            step()
            scaler.step(optimizer)
            scaler.update()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(20):
        graph.replay()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    assert all(value == value for value in losses)
    del graph, loss
    optimizer.zero_grad(set_to_none=True)
