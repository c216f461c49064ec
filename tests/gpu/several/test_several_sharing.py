"""Lending between processes that see different GPUs, or the same in another order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import several_remote as remote
from peer import Peer

Start = Callable[[str], Peer]
NOTHING = {"limbo_blocks": 0, "active_bytes": 0, "reserved_bytes": 0, "in_flight": 0}


def test_the_owners_gpu_has_another_index_here(process_that_sees: Start) -> None:
    owner, reader = process_that_sees("0,1"), process_that_sees("1,0")
    assert owner.call(remote.uuids) == list(reversed(reader.call(remote.uuids)))
    for device in (0, 1):
        message = owner.call(remote.make, "lent", 40 + device, 4, device)
        assert reader.call(remote.receive, "got", message) == (1 - device, 40 + device, 40 + device)
        reader.call(remote.fill, "got", 7)
        assert owner.call(remote.values, "lent") == (7, 7)
        owner.call(remote.drop, "lent")
        reader.call(remote.drop, "got")
        assert owner.call(remote.all_is_back) == NOTHING
    assert reader.call(remote.mapped_pieces) == 0


def test_a_message_is_opened_on_a_named_gpu(process_that_sees: Start) -> None:
    owner, reader = process_that_sees("0,1"), process_that_sees("1,0")
    message = owner.call(remote.make, "lent", 40)
    # GPU 1 of the machine, over the link to the owner's.
    assert reader.call(remote.receive, "got", message, 0) == (0, 40, 40)
    assert reader.call(remote.device_by_driver, "got") == 0, "mapped for the owner's GPU"
    reader.call(remote.fill, "got", 7)
    assert owner.call(remote.values, "lent") == (7, 7)
    reader.call(remote.drop, "got")
    owner.call(remote.drop, "lent")
    assert owner.call(remote.all_is_back) == NOTHING


def test_a_gpu_that_is_not_visible_is_reached_over_the_link(process_that_sees: Start) -> None:
    owner, reader = process_that_sees("0"), process_that_sees("1")
    message = owner.call(remote.make, "lent", 40)
    code, text = reader.call(remote.code_of_receiving, message)
    assert code == "device_not_visible"
    assert "device=" in text
    for uuid in (*owner.call(remote.uuids), *reader.call(remote.uuids)):
        assert uuid in text
    assert reader.call(remote.receive, "got", message, 0) == (0, 40, 40)
    reader.call(remote.fill, "got", 7)
    assert owner.call(remote.values, "lent") == (7, 7)
    owner.call(remote.drop, "lent")
    assert reader.call(remote.values, "got") == (7, 7)
    reader.call(remote.drop, "got")
    assert owner.call(remote.all_is_back) == NOTHING


@pytest.mark.parametrize("opened", [(0, 1), (1, 0)], ids=["here first", "there first"])
@pytest.mark.parametrize("dropped", [(0, 1), (1, 0)], ids=["here back first", "there back first"])
def test_one_message_on_both_gpus_of_a_process(
    process_that_sees: Start, opened: tuple[int, int], dropped: tuple[int, int]
) -> None:
    owner, reader = process_that_sees("0,1"), process_that_sees("0,1")
    on = ("on 0", "on 1")
    message = owner.call(remote.make, "lent", 40, 32)
    for device in opened:
        assert reader.call(remote.receive, on[device], message, device) == (device, 40, 40)
        assert reader.call(remote.device_by_driver, on[device]) == device
    assert reader.call(remote.address, on[0]) != reader.call(remote.address, on[1])
    reader.call(remote.fill, on[1], 7)
    assert reader.call(remote.values, on[0]) == (7, 7)
    owner.call(remote.drop, "lent")
    reader.call(remote.drop, on[dropped[0]])
    assert reader.call(remote.values, on[dropped[1]]) == (7, 7)
    assert owner.call(remote.in_limbo) == 1
    reader.call(remote.drop, on[dropped[1]])
    assert owner.call(remote.all_is_back) == NOTHING
    assert reader.call(remote.mapped_pieces) == 0


def test_the_reader_ends_first(process_that_sees: Start) -> None:
    owner, reader = process_that_sees("0"), process_that_sees("1")
    message = owner.call(remote.make, "lent", 40)
    assert reader.call(remote.receive, "got", message, 0) == (0, 40, 40)
    owner.call(remote.drop, "lent")
    reader.stop()  # with the tensor still held
    assert owner.call(remote.all_is_back) == NOTHING


def test_the_owner_ends_first(process_that_sees: Start) -> None:
    owner, reader = process_that_sees("0"), process_that_sees("1")
    message = owner.call(remote.make, "lent", 40)
    assert reader.call(remote.receive, "got", message, 0) == (0, 40, 40)
    owner.stop()
    assert reader.call(remote.values, "got") == (40, 40)
    reader.call(remote.drop, "got")
    assert reader.call(remote.all_is_back) == NOTHING
    # It goes on, with others too.
    other = process_that_sees("0")
    message = other.call(remote.make, "lent", 41)
    assert reader.call(remote.receive, "got", message, 0) == (0, 41, 41)
    reader.call(remote.drop, "got")
    other.call(remote.drop, "lent")
    assert other.call(remote.all_is_back) == NOTHING


def test_streams_of_two_gpus_wait_for_each_other(process_that_sees: Start) -> None:
    owner, reader = process_that_sees("0,1"), process_that_sees("0,1")
    for round_ in range(3):
        message = owner.call(remote.make, "lent", 40 + round_, 4, 0, True)
        got = reader.call(remote.receive, "got", message, 1)
        assert got == (1, 40 + round_, 40 + round_), "the reader was early"
        # And back: the owner's stream behind the reader's.
        back = reader.call(remote.add_late, "got", 100)
        got = owner.call(remote.receive, "back", back)
        assert got == (0, 140 + round_, 140 + round_), "the owner was early"
        assert owner.call(remote.address, "back") == owner.call(remote.address, "lent")
        reader.call(remote.drop, "got")
        owner.call(remote.drop, "lent", "back")
    assert owner.call(remote.all_is_back) == NOTHING


def test_a_tensor_goes_on_to_a_third_process(process_that_sees: Start) -> None:
    owner, second, third = (process_that_sees(which) for which in ("0", "1", "0,1"))
    for round_ in range(3):
        message = owner.call(remote.make, "lent", 40, 4, 0, True)
        assert second.call(remote.receive, "got", message, 0) == (0, 40, 40)
        on = second.call(remote.add_late, "got", 100)
        # On the owner's GPU in one round, on the forwarder's in the next.
        device = round_ % 2
        got = third.call(remote.receive, "got", on, device)
        assert got == (device, 140, 140), "the third was early"
        second.call(remote.drop, "got")
        owner.call(remote.drop, "lent")
        assert third.call(remote.values, "got") == (140, 140)
        third.call(remote.drop, "got")
    assert owner.call(remote.all_is_back) == NOTHING
    assert second.call(remote.all_is_back) == NOTHING


@pytest.mark.parametrize("added", [0, 100], ids=["as it came", "changed on the way"])
@pytest.mark.parametrize("device", [0, 1], ids=["the owner's GPU", "the forwarder's"])
def test_it_goes_on_before_its_owner_has_written_it(
    process_that_sees: Start, device: int, added: int
) -> None:
    owner, second, third = (process_that_sees(which) for which in ("0", "1", "0,1"))
    message = owner.call(remote.make_gated, "lent", 40)
    try:
        assert second.call(remote.open_unread, "got", message, 0) == (0, True)
        on = second.call(remote.send_on, "got", added)
        assert third.call(remote.open_unread, "got", on, device) == (device, True)
    finally:
        owner.call(remote.open_gate)
    assert third.call(remote.values, "got") == (40 + added, 40 + added), "the third was early"
    for process, name in ((second, "got"), (third, "got"), (owner, "lent")):
        process.call(remote.drop, name)
    assert owner.call(remote.all_is_back) == NOTHING
    assert second.call(remote.all_is_back) == NOTHING
