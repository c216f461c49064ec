"""torch.multiprocessing, reduced tensors and stock PyTorch on the other side, on a GPU."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from gpu_scripts import run_script


def test_every_kind_of_tensor() -> None:
    result = run_script("kinds.py")
    assert result["failures"] == []
    assert result["before"] == result["after"]
    assert result["receives"] > 80, "too few went by descriptor"
    assert result["exit"] == 0


def test_programs_of_torch_multiprocessing() -> None:
    result = run_script("programs.py")
    assert result["results"] == dict.fromkeys(
        ("a_data_loader", "pools", "a_broker", "joined_queue", "started", "spawned"), True
    )
    for what in ("allocated", "active"):
        assert result["before"][what] == result["after"][what]


def test_tuples_taken_apart() -> None:
    result = run_script("tuples.py")
    readers = len(result["exits"])
    assert result["opened"] == [result["expected"]] * readers
    assert result["patched"] == [5000.0] * readers
    assert result["stranger"] == "device_not_visible"
    assert result["in_limbo"] == 1, "eight readers hold it"
    assert result["ended"] == ["done"] * readers
    assert result["exits"] == [0] * readers
    for what in ("allocated", "active"):
        assert result["before"][what] == result["after"][what]


@pytest.mark.parametrize("way", ["one", "each"])
def test_weights_bucket_by_bucket(way: str) -> None:
    result = run_script("weight_sync.py", way)
    print(f"model {result['model_bytes']}, bucket {result['bucket_bytes']}, peak {result['peak']}")
    print("reserved:", [use["reserved"] for use in result["curve"]])
    assert result["right"], "the engine has other weights"
    assert result["peak"] == result["model_bytes"] + result["bucket_bytes"]
    curve = result["curve"]
    assert len(curve) == 50
    for use in curve:
        assert use["allocated"] == use["active"] == result["model_bytes"]
    assert {use["reserved"] for use in curve[2:]} == {curve[2]["reserved"]}
    assert result["reserved_peak"] == curve[2]["reserved"]
    assert result["exit"] == 0


STOCK_PAIRS = [
    f"{producer} producer, {first} first"
    for producer in ("limbo", "stock")
    for first in ("producer", "consumer")
]


@functools.cache
def stock_pairs() -> dict[str, Any]:
    return run_script("stock_both_ways.py")


@pytest.mark.parametrize("pair", STOCK_PAIRS)
def test_stock_on_the_other_side(pair: str) -> None:
    result = stock_pairs()[pair]
    limbo_produces = pair.startswith("limbo")
    assert result["backends"] == (["limbo", "native"] if limbo_produces else ["native", "limbo"])
    assert result["knows"] == (not limbo_produces), "which one has imported torch_limbo"
    assert result["one segment, one handle"]
    assert result["sent again, the same"]
    assert result["another segment, another handle"]
    numbers = 499_500
    assert result["values"] == [numbers, 2 * numbers, 3 * (8 << 20)]
    assert result["changed"] == numbers + 1000
    assert result["values after"] == [numbers + 1000, 2 * numbers, 3 * (8 << 20)]
    assert result["exits"] == [0, 0]


def test_one_call_collects_both_limbos() -> None:
    result = run_script("both_limbos.py")
    assert result["held"] == [4 << 20, 4 << 20], "one lent by torch's way, one by Limbo's"
    assert result["after"] == result["before"]
    assert result["exit"] == 0


def test_every_way_to_resize() -> None:
    result = run_script("resize_ways.py")
    assert result["wrong"] == {}
    assert result["own_memory_beside"] == {}
    assert result["own_memory_under_limbo"] == {}
    assert result["tried"] > 150
    assert result["intact"]
    assert result["exit"] == 0


def test_tensors_under_names() -> None:
    result = run_script("registry.py")
    assert result["warm"] == [0.0, [1 << 20], "Tensor"]
    assert result["seen"] == [2.0 * (1 << 20), [4, 1 << 18], "Parameter"]
    assert result["held_by_consumer"]
    assert result["released"] == [[0, "other"], [0, "other"]]
    assert result["swept"] == 1
    assert result["names"] == []
    for what in ("allocated", "active"):
        assert result["before"][what] == result["after"][what]


@pytest.mark.parametrize("alone", [False, True], ids=["with torch_limbo", "alone"])
def test_processes_that_load_a_plug_in(alone: bool) -> None:
    import torch_limbo

    environment = {"PLUG_IN": str(torch_limbo.library_path())} if alone else {}
    result = run_script("stock_loaded.py", **environment)
    assert result["alone"] == alone
    assert result["sums"] == [20.0, 20.0]
    assert result["one_storage"]
    assert result["backends"] == ["limbo", "limbo"]
    assert result["allocated"] >= 4000
    assert result["written"] == 20.0
    assert result["received"] == [1000.0, 1000.0]
    assert result["twice"]
    assert result["exit"] == 0
    for what in ("allocated", "active"):
        assert result["before"][what] == result["after"][what]
