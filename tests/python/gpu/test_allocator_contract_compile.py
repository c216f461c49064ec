"""torch.compile(mode="reduce-overhead"): trees of CUDA graphs over one pool."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from contract import (
    check_statistics,
    have_compiler,
    memory_use,
    private_segments,
    settle,
)

pytestmark = pytest.mark.usefixtures("no_private_memory_is_left")


# ---- the real thing -----------------------------------------------------------------------------


@pytest.fixture
def compiling(no_private_memory_is_left: None) -> Iterator[None]:  # noqa: ARG001
    """What is compiled keeps its graphs and their memory until the end of this; what is left is
    looked at after it."""
    missing = have_compiler()
    if missing:
        pytest.skip(missing)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
    ).cuda()


@pytest.mark.usefixtures("compiling")
def test_compiled_inference_with_reduced_overhead() -> None:
    model = mlp()
    compiled = torch.compile(model, mode="reduce-overhead")
    inputs = [torch.randn(16, 64, device="cuda") for _ in range(8)]
    with torch.no_grad():
        for data in inputs:
            torch.compiler.cudagraph_mark_step_begin()
            result = compiled(data).clone()
            assert torch.allclose(result, model(data), atol=1e-4)
        assert private_segments(), "cudagraphs were used"
    check_statistics()


@pytest.mark.usefixtures("compiling")
def test_compiled_training_with_reduced_overhead() -> None:
    inputs = [torch.randn(16, 64, device="cuda") for _ in range(8)]

    def train(compiled: bool) -> list[float]:
        model: Any = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        step = torch.compile(model, mode="reduce-overhead") if compiled else model
        losses = []
        for data in inputs:
            torch.compiler.cudagraph_mark_step_begin()
            loss = (step(data) - data).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss))
        return losses

    expected = train(False)
    assert train(True) == pytest.approx(expected, rel=1e-3)


@pytest.mark.usefixtures("compiling")
def test_compiled_branches_and_results_that_live_on() -> None:
    """Several paths through a tree of graphs, with results of earlier runs still alive."""

    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2

    def left(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    def right(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]).cos()

    compiled = [torch.compile(each, mode="reduce-overhead") for each in (first, left, right)]
    with torch.no_grad():
        for turn in range(12):
            data = torch.randn(700, 300, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            middle = compiled[0](data)
            end = compiled[1 + turn % 2](middle)
            plain = (left, right)[turn % 2](first(data))
            assert torch.allclose(end, plain, atol=1e-5)
            assert torch.allclose(middle, first(data), atol=1e-5)
    del middle, end
    check_statistics()


@pytest.mark.usefixtures("compiling")
def test_memory_of_compiled_functions_comes_back() -> None:
    def measure() -> dict[str, int]:
        compiled = torch.compile(lambda x: (x @ x).relu() + 1, mode="reduce-overhead")
        data = torch.randn(256, 256, device="cuda")
        with torch.no_grad():
            for _ in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                compiled(data)
        del compiled, data
        torch._dynamo.reset()
        settle()
        return memory_use()

    first = measure()
    for _ in range(2):
        assert measure() == first
