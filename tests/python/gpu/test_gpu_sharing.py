"""Lending between processes on a GPU."""

from __future__ import annotations

import pytest
from gpu_scripts import check_canary, run_script


def test_a_thousand_tensors_through_a_queue() -> None:
    result = run_script("queue_thousand.py")
    assert result["wrong"] == []
    assert result["before"] == result["after"]
    assert result["before"]["allocated"] == result["before"]["active"]
    assert result["descriptors"][1] <= result["descriptors"][0], result["descriptors"]
    assert (result["backend"], result["consumer_backend"]) == ("limbo", "native")
    assert result["consumer_exit"] == 0
    statistics = result["statistics"]
    assert (statistics["limbo_blocks"], statistics["in_flight"]) == (0, 0)


def test_a_consumer_killed_under_its_kernel() -> None:
    check_canary(run_script("killed_writer.py"))


def test_a_killed_consumer_whose_child_keeps_the_gpu_open() -> None:
    result = run_script("killed_writer.py", "--child")
    assert result["stayed_with_child"], "the block came back while the dead kernel could write"
    assert any("quarantine" in state for state in result["holders"])
    check_canary(result)


def test_a_killed_consumer_that_loaded_the_library_late() -> None:
    result = run_script("killed_writer.py", "--late")
    assert len(result["holders"]) == 1
    assert result["seconds_to_return"] >= 2.0, "it came back before the grace time was over"
    check_canary(result)


def test_a_killed_producer_whose_work_was_waited_for() -> None:
    result = run_script("killed_producer.py")
    assert result["waiting"], "nothing was waiting when the producer was killed"
    assert result["wrong"] == [0, 0], "a finished send has not the values that were sent"
    assert result["orphaned"] == [True, True]
    assert result["exit"] == -9
    assert result["statistics"]["pieces_mapped"] <= 2


def test_the_last_messages_of_children_that_end_at_once() -> None:
    result = run_script("last_message.py")
    assert result["values"] == [0.0, 1.0, 2.0, 3.0]
    assert result["exits"] == [0, 0, 0, 0]
    assert result["descriptors"][1] <= result["descriptors"][0]


def test_sizes_of_received_tensors() -> None:
    answer = run_script("resize.py")
    assert answer["intact"]
    assert answer["exit"] == 0
    result = answer["result"]
    for what in ("larger", "larger view", "out", "resize_as", "set"):
        assert result[what] == "refused", result
        assert "clone()" in result[what + " text"], result
    for size in (8192, 2048, 0):
        assert result[f"storage {size}"] == "refused", result
    assert result["smaller"]
    assert result["empty"]
    assert result["again"]
    assert result["received"]


@pytest.mark.parametrize("way", ["native", "limbo"])
def test_a_received_tensor_on_a_side_stream(way: str) -> None:
    result = run_script("record_stream.py", way)
    assert result["copied_well"]
    assert result["returned_after"] > 0.9 * result["work"], "it came back before the stream's work"
    assert result["host_waited"] < 0.5 * result["work"], "letting go waited for the stream"
    assert result["exit"] == 0


@pytest.mark.parametrize("way", ["native", "limbo"])
def test_a_graph_keeps_the_received_tensor_that_it_uses(way: str) -> None:
    result = run_script("graphs.py", way)
    assert (result["held"], result["held_after"]) == (1, 1), "it came back while the graph lived"
    assert result["right"] == result["replays"]
    assert result["exit"] == 0


@pytest.mark.parametrize("way", ["native", "limbo"])
def test_no_capture_is_lost_that_begins_beside_releases(way: str) -> None:
    result = run_script("beginning_captures.py", way)
    assert result["captures"] > 0
    assert result["lost"] == 0
    assert result["total"] == 30
    assert result["exit"] == 0


def test_a_consumer_that_knows_no_limbo() -> None:
    result = run_script("stock_consumer.py")
    assert (result["total"], result["part"]) == (499500, [10, 11, 12, 13])
    assert not result["known"], "the consumer imported torch_limbo"
    assert result["changed"] == 499500 + 1000
    assert result["returned"] == 8192
    assert result["exit"] == 0


def test_memory_of_torchs_allocator_goes_torchs_way() -> None:
    result = run_script("not_enabled.py")
    assert (result["backend"], result["storage_class"]) == ("native", "torch")
    assert (result["total"], result["received"]) == (499500, False)
    assert result["code"] == "not_lendable"
    assert result["exit"] == 0


def test_messages_between_two_limbo_processes() -> None:
    result = run_script("roundtrip.py")
    assert result["failures"] == []
    assert result["before"] == result["after"]
    assert result["exit"] == 0
