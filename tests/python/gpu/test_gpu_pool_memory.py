"""Tensors of private pools on their way to other processes, and pools with Limbo behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpu_scripts import compile_counting_allocator, run_script

ELEMENTS = 1 << 20


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_counting_allocator(tmp_path_factory.mktemp("allocator"))


@pytest.mark.parametrize("consumer", ["native", "limbo"])
def test_memory_of_graphs_and_pools_goes_torchs_own_way(consumer: str, counting: Path) -> None:
    result = run_script("private_pools.py", consumer, str(counting))
    names = ["graph", "pool", "counting", "shifted"]
    assert result["lendable"] == dict.fromkeys(names, False)
    assert result["refusals"] == dict.fromkeys(names, "not_lendable")
    sent = {"graph": [2.0, 2.0], "pool": [0.0, 0.0], "counting": [1.0, 1.0], "shifted": [2.0, 2.0]}
    assert result["first"] == sent
    assert result["replayed"] == {**sent, "graph": [10.0, 10.0]}, "as with torch's allocator"
    assert result["last"] == result["replayed"], "reused under a reader"
    for what, tensors in (("held", 7), ("kept", 4)):
        beside = result[what] - tensors * 4 * ELEMENTS
        assert 0 <= beside <= 4096, f"{what}: a graph takes some hundred bytes itself"
    assert result["out"] == 0, "the pools' allocators have everything back"
    assert result["after"]["allocated"] == result["before"]["allocated"]
    assert result["exit"] == 0


def test_memory_of_nccl_says_what_to_do() -> None:
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    result = run_script("nccl_pool.py", NCCL_NVLS_ENABLE="0")
    if result["missing"]:
        pytest.skip(f"NCCL has no allocator here: {result['missing']}")
    assert result["code"] == "not_lendable"
    for way in ("by_torch", "pickled"):
        assert "limbo[not_lendable]" in result[way]
        assert "clone()" in result[way]
    assert result["whole"] == ELEMENTS


@pytest.mark.parametrize("way", ["stock", "object", "native"])
def test_limbo_behind_a_pool(way: str) -> None:
    result = run_script("pool_behind.py", way)
    assert result["backend"] == ("native" if way == "native" else "limbo")
    assert result["values"] == [1000.0, 2000.0, 2.0 * (1 << 20), 2.0 * (1 << 24)]
    assert result["lies_inside"]
    assert result["left"] == 0
