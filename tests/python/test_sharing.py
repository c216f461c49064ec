"""share and receive between processes, on the simulated device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import remote
import sim
import torch
import torch_limbo
from balance import wait_for_empty_limbo, wait_until
from peer import Peer
from torch_limbo import LimboError, Registry

pytestmark = pytest.mark.usefixtures("balanced")


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


def test_a_tensor_is_lent_and_comes_back(peer: Peer) -> None:
    tensor = sim.full((3, 5), 4.5)
    message = torch_limbo.share(tensor)
    assert isinstance(message, bytes)
    assert bool((peer.call(remote.receive, "t", message) == 4.5).all())
    peer.call(remote.fill, "t", 7.0)  # the same memory: the other side's writes are seen here
    peer.call(remote.values, "t")
    assert bool((sim.read(tensor) == 7.0).all())
    del tensor
    torch_limbo.collect()
    assert torch_limbo.stats()["limbo_blocks"] == 1
    holder = next(h for h in torch_limbo.holders() if h.pid == peer.pid)
    assert (holder.state, holder.claims) == ("connected", 1)
    assert bool((peer.call(remote.values, "t") == 7.0).all())
    peer.call(remote.drop, "t")


@pytest.mark.parametrize("opens", [1, 3])
def test_a_message_may_be_opened_several_times(peer: Peer, opens: int) -> None:
    tensor = sim.full((100,), 2.0)
    message = torch_limbo.share(tensor)
    for number in range(opens):
        peer.call(remote.receive, str(number), message)
    for number in range(1, opens):
        assert peer.call(remote.same_storage, "0", str(number))
    del tensor
    peer.call(remote.drop_all)


def test_one_message_for_two_processes(peer: Peer) -> None:
    tensor = sim.full((100,), 2.0)
    message = torch_limbo.share(tensor, consumers=2)
    assert torch_limbo.stats()["in_flight"] == 2
    del tensor
    for _ in range(2):  # one process, one of the two
        mine = torch_limbo.receive(message)
        assert bool((sim.read(mine) == 2.0).all())
        del mine
    torch_limbo.collect()
    assert torch_limbo.stats()["in_flight"] == 1
    assert torch_limbo.stats()["limbo_blocks"] == 1
    assert bool((peer.call(remote.receive, "t", message) == 2.0).all())
    peer.call(remote.drop, "t")


def test_a_message_that_nobody_opens_ends_with_its_time(peer: Peer) -> None:
    tensor = sim.full((100,), 2.0)
    message = torch_limbo.share(tensor, ttl=0.05)
    del tensor
    wait_for_empty_limbo()  # nobody has to do anything for it
    assert peer.call(remote.code_of_receiving, message) == "expired"


def test_a_message_stays_open_while_its_owner_holds_the_tensor(peer: Peer) -> None:
    tensor = sim.full((100,), 2.0)
    message = torch_limbo.share(tensor)
    for _ in range(3):
        peer.call(remote.receive, "t", message)
        peer.call(remote.drop, "t")
    del tensor


def test_a_received_tensor_is_sent_on(peer: Peer) -> None:
    tensor = sim.full((100,), 2.0)
    peer.call(remote.receive, "t", torch_limbo.share(tensor))
    peer.call(remote.fill, "t", 3.0)
    whole = peer.call(remote.send_on, "t")
    half = peer.call(remote.send_on_half, "t")
    del tensor
    with Peer() as third:
        assert bool((third.call(remote.receive, "t", whole) == 3.0).all())
        assert third.call(remote.receive, "half", half).shape == (50,)
        assert third.call(remote.same_storage, "t", "half")
        # The forwarder ends; who was given it by that one reads on.
        peer.call(remote.drop_all)
        assert torch_limbo.stats()["limbo_blocks"] == 1
        assert bool((third.call(remote.values, "t") == 3.0).all())
        # And back to its owner, who has freed it.
        mine = torch_limbo.receive(third.call(remote.send_on, "t"))
        assert bool((sim.read(mine) == 3.0).all())
        again = torch_limbo.share(mine)
        del mine
        assert bool((third.call(remote.receive, "again", again) == 3.0).all())
        third.call(remote.drop_all)
        wait_for_empty_limbo()


def test_what_cannot_be_sent_on(peer: Peer) -> None:
    tensor = sim.full((100,), 2.0)
    message = torch_limbo.share(tensor)
    peer.call(remote.receive, "t", message)
    torch_limbo.withdraw(message)
    code, text = peer.call(remote.code_of_sending_on, "t")
    assert code == "withdrawn"
    assert "clone()" in text
    peer.call(remote.drop_all)


def test_withdraw(peer: Peer) -> None:
    tensor = sim.full((100,), 2.0)
    opened, unopened = torch_limbo.share(tensor), torch_limbo.share(tensor)
    peer.call(remote.receive, "t", opened)
    torch_limbo.withdraw(opened)
    torch_limbo.withdraw(unopened)
    assert peer.call(remote.code_of_receiving, unopened) == "withdrawn"
    del tensor
    assert bool((peer.call(remote.values, "t") == 2.0).all())
    peer.call(remote.drop, "t")


def test_two_tensors_of_one_storage_share_it(peer: Peer) -> None:
    base = sim.of(torch.arange(24, dtype=torch.int64))
    whole, part = torch_limbo.share(base.view(4, 6)), torch_limbo.share(base.view(4, 6)[1:, ::2])
    assert peer.call(remote.receive, "whole", whole).flatten().tolist() == list(range(24))
    got = peer.call(remote.receive, "part", part)
    assert got.tolist() == [[6, 8, 10], [12, 14, 16], [18, 20, 22]]
    assert peer.call(remote.same_storage, "whole", "part")
    del base
    peer.call(remote.drop, "whole")
    assert peer.call(remote.values, "part").tolist() == got.tolist()
    peer.call(remote.drop, "part")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_parameters_stay_parameters(peer: Peer, requires_grad: bool) -> None:
    weight = torch.nn.Parameter(sim.full((2, 3), 1.5), requires_grad=requires_grad)
    peer.call(remote.receive, "t", torch_limbo.share(weight))
    seen = peer.call(remote.describe, "t")
    assert (seen["type"], seen["requires_grad"], seen["leaf"]) == ("Parameter", requires_grad, True)
    del weight
    peer.call(remote.drop, "t")


def test_shapes_as_sent(peer: Peer) -> None:
    base = sim.of(torch.arange(12, dtype=torch.int32))
    tensors = {
        "zero-dimensional": base[5],
        "expanded": base[3].expand(2, 4),
        "transposed": base.view(3, 4).t(),
        "offset": base[7:],
        "no elements": base[4:4],
        "empty": sim.empty(0, 3),
    }
    for name, tensor in tensors.items():
        got = peer.call(remote.receive, name, torch_limbo.share(tensor))
        assert torch.equal(got, sim.read(tensor)), name
        seen = peer.call(remote.describe, name)
        assert seen["shape"] == tuple(tensor.shape), name
        assert seen["stride"] == tensor.stride(), name
        assert seen["offset"] == tensor.storage_offset(), name
        assert seen["dtype"] == str(tensor.dtype), name
    del tensor
    tensors.clear()
    del base
    peer.call(remote.drop_all)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool])
def test_data_types(peer: Peer, dtype: torch.dtype) -> None:
    tensor = sim.full((7,), 1, dtype=dtype)
    got = peer.call(remote.receive, "t", torch_limbo.share(tensor))
    assert got.dtype == dtype
    assert bool((got == 1).all())
    del tensor
    peer.call(remote.drop, "t")


def test_a_received_tensor_used_on_other_streams(peer: Peer) -> None:
    tensor = sim.full((1000,), 3.0)
    peer.call(remote.receive, "t", torch_limbo.share(tensor))
    del tensor
    peer.call(remote.use_on_side_streams, "t", 3)
    assert bool((peer.call(remote.values, "t") == 5.0).all())
    peer.call(remote.drop, "t")


def test_opened_where_it_was_made() -> None:
    tensor = sim.full((64,), 3.0)
    opens = torch_limbo.stats()["opens"]
    message = torch_limbo.share(tensor)
    got = torch_limbo.receive(message)
    assert got.data_ptr() == tensor.data_ptr()
    assert torch_limbo.stats()["opens"] == opens  # the driver was not asked
    del tensor
    assert bool((sim.read(got) == 3.0).all())
    del got


def test_the_producer_may_be_the_other_process(peer: Peer) -> None:
    message = peer.call(remote.make, "t", (50,), 8.0)
    tensor = torch_limbo.receive(message)
    peer.call(remote.drop, "t")
    assert bool((sim.read(tensor) == 8.0).all())
    del tensor


def test_a_producer_that_has_ended() -> None:
    with Peer() as producer:
        opened = producer.call(remote.make, "a", (50,), 8.0)
        unopened = producer.call(remote.make, "b", (50,), 9.0)
        tensor = torch_limbo.receive(opened)
        producer.call(sim.synchronize)  # what a killed process had queued goes with it
        producer.kill()
    assert bool((sim.read(tensor) == 8.0).all())
    # Before that it may be received still: its memory is mapped here.
    wait_until(partial(torch_limbo.is_orphaned, tensor), "its producer's end is noticed")
    with pytest.raises(LimboError) as caught:
        torch_limbo.receive(unopened)
    assert caught.value.code == "producer_exited"
    del tensor


def code_of(call: object, *arguments: object, **named: object) -> tuple[str, str]:
    with pytest.raises(LimboError) as caught:
        call(*arguments, **named)  # type: ignore[operator]
    return caught.value.code, str(caught.value)


def test_what_cannot_be_shared() -> None:
    code, text = code_of(torch_limbo.share, torch.ones(3))
    assert code == "not_lendable"
    assert "cpu" in text.lower()
    code, text = code_of(torch_limbo.share, (sim.full((3,), 1.0).requires_grad_()).view(3, 1))
    assert code == "bad_argument"
    assert "requires_grad" in text
    assert code_of(torch_limbo.share, [1, 2])[0] == "bad_argument"
    tensor = sim.full((3,), 1.0)
    assert code_of(torch_limbo.share, tensor, consumers=0)[0] == "bad_argument"
    assert code_of(torch_limbo.share, tensor, consumers=1_000_001)[0] == "bad_argument"
    assert code_of(torch_limbo.share, tensor, ttl=-1)[0] == "bad_argument"
    assert code_of(torch_limbo.share, tensor, ttl=float("nan"))[0] == "bad_argument"
    assert code_of(torch_limbo.share, tensor, ttl="soon")[0] == "bad_argument"
    assert code_of(torch_limbo.share, tensor, consumers=1.5)[0] == "bad_argument"


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_names_of_dimensions_are_not_lost_silently() -> None:
    code, text = code_of(torch_limbo.share, sim.full((2, 2), 1.0).refine_names("row", "column"))
    assert code == "bad_argument"
    assert "rename(None)" in text


def test_bytes_that_are_no_message() -> None:
    tensor = sim.full((3,), 1.0)
    good = torch_limbo.share(tensor)
    altered = bytearray(good)
    altered[len(good) // 2] ^= 0x40
    for bad in (b"", b"x", b"\0" * 200, good[:-1], good + b"\0", bytes(altered)):
        assert code_of(torch_limbo.receive, bad)[0] == "bad_descriptor"
        assert code_of(torch_limbo.withdraw, bad)[0] == "bad_descriptor"
    assert bool((sim.read(torch_limbo.receive(memoryview(good))) == 1.0).all())


@pytest.mark.parametrize("what", ["a text", None, 7, [1, 2]])
def test_what_is_no_bytes(what: object) -> None:
    for call in (torch_limbo.receive, torch_limbo.withdraw):
        code, text = code_of(call, what)
        assert code == "bad_argument"
        assert type(what).__name__ in text


def test_a_default_device_of_the_program() -> None:
    tensor = sim.full((3,), 1.0)
    torch.set_default_device("cuda")  # torch's factory functions go there
    try:
        assert torch_limbo.receive(torch_limbo.share(tensor)).data_ptr() == tensor.data_ptr()
        assert code_of(torch_limbo.receive, b"")[0] == "bad_descriptor"
    finally:
        torch.set_default_device(None)


def test_devices_that_do_not_exist() -> None:
    tensor = sim.full((3,), 1.0)
    message = torch_limbo.share(tensor)
    assert code_of(torch_limbo.receive, message, device="cpu")[0] == "bad_argument"
    assert code_of(torch_limbo.receive, message, device=-3)[0] == "bad_argument"
    assert code_of(torch_limbo.receive, message, device="cuda:sixteen")[0] == "bad_argument"
    code, text = code_of(torch_limbo.receive, message, device="GPU-0000")
    assert code == "device_not_visible"
    assert "GPU-0000" in text
    torch_limbo.withdraw(message)


WRONG_ARGUMENTS: dict[str, Callable[[torch.Tensor, bytes], object]] = {
    "consumers 0": lambda tensor, _: torch_limbo.share(tensor, consumers=0),
    "consumers 1000001": lambda tensor, _: torch_limbo.share(tensor, consumers=1_000_001),
    "consumers 2**70": lambda tensor, _: torch_limbo.share(tensor, consumers=2**70),
    "consumers 1.5": lambda tensor, _: torch_limbo.share(tensor, consumers=1.5),  # type: ignore
    "ttl 367 days": lambda tensor, _: torch_limbo.share(tensor, ttl=367 * 86_400),
    "ttl 10**400": lambda tensor, _: torch_limbo.share(tensor, ttl=10**400),
    "ttl nan": lambda tensor, _: torch_limbo.share(tensor, ttl=float("nan")),
    "ttl text": lambda tensor, _: torch_limbo.share(tensor, ttl="x"),  # type: ignore
    "publish ttl 10**400": lambda tensor, _: Registry().publish("n", tensor, ttl=10**400),
    "receive on 2**70": lambda _, message: torch_limbo.receive(message, device=2**70),
    "receive on -1": lambda _, message: torch_limbo.receive(message, device=-1),
    "orphaned text": lambda *_: torch_limbo.is_orphaned("x"),  # type: ignore
    "orphaned None": lambda *_: torch_limbo.is_orphaned(None),  # type: ignore
    "release None": lambda *_: Registry().release(None),  # type: ignore
    "release text": lambda *_: Registry().release("x"),  # type: ignore
    "reap text": lambda *_: torch_limbo.reap(process="x"),  # type: ignore
    "holders 1": lambda *_: torch_limbo.holders(process=1),  # type: ignore
}


@pytest.mark.parametrize("what", WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named_and_nothing_is_held(what: str) -> None:
    tensor = sim.full((10,), 2.0)
    message = torch_limbo.share(tensor)
    sends = torch_limbo.stats()["sends"]
    with pytest.raises(LimboError) as caught:
        WRONG_ARGUMENTS[what](tensor, message)
    assert caught.value.code == "bad_argument"
    named = what.rpartition(" ")[2]
    named = {"days": str(367 * 86_400), "text": "x"}.get(named) or str(eval(named, {"nan": "nan"}))
    assert named in str(caught.value)
    assert torch_limbo.stats()["sends"] == sends
    torch_limbo.withdraw(message)
    del tensor


def test_the_longest_time_that_may_be_asked_for() -> None:
    tensor = sim.full((10,), 2.0)
    torch_limbo.withdraw(torch_limbo.share(tensor, consumers=1_000_000, ttl=366 * 86_400))
    del tensor
