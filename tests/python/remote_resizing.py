"""Ways to change a tensor's size, tried by another process on what it has received (peer.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import remote
import sim
import sim_torch
import torch

assert sim_torch.is_in_place()

Change = Callable[[torch.Tensor], object]


def layouts(size: int) -> dict[str, Change]:
    """Ways to `size` elements that only lay a tensor out anew."""
    like = sim.empty(size)
    return {
        "resize_": lambda t: t.resize_(size),
        "resize_ in two dimensions": lambda t: t.resize_((1, size)),
        "resize_ with a format": lambda t: t.resize_(
            (1, 1, 1, size), memory_format=torch.channels_last
        ),
        "resize_as_": lambda t: t.resize_as_(like),
        "set_ to its storage": lambda t: t.set_(t.untyped_storage(), 0, (size,), (1,)),
        "set_ with an offset": lambda t: t.set_(
            t.untyped_storage(), t.storage_offset(), (size,), (1,)
        ),
    }


def results(size: int) -> dict[str, Change]:
    """Ways to `size` elements by an operator's result. Others ask the driver before they come to
    the size: gpu/scripts/resize_ways.py has them."""
    like = sim.empty(size)
    return {
        "stack": lambda t: torch.stack([like], out=t),
        "arange": lambda t: torch.arange(size, device="cuda", out=t),
        "zeros": lambda t: torch.zeros(size, device="cuda", out=t),
        "empty": lambda t: torch.empty(size, out=t),
    }


def storages(size_bytes: int) -> dict[str, Change]:
    """Ways to give the storage another size: all refused, whatever the size."""
    return {
        "storage": lambda t: t.untyped_storage().resize_(size_bytes),
        "typed storage": lambda t: t._typed_storage()._resize_(size_bytes // 4),
    }


def nonsense() -> dict[str, Change]:
    return {
        "a negative size": lambda t: t.resize_(-1),
        "more than can be counted": lambda t: t.resize_(2**62),
        "many large dimensions": lambda t: t.resize_((2**31, 2**31, 2**31)),
        "a stride beyond": lambda t: t.set_(t.untyped_storage(), 0, (2,), (2**40,)),
        "a negative stride": lambda t: t.set_(t.untyped_storage(), 0, (2,), (-1,)),
        "an offset beyond": lambda t: t.set_(t.untyped_storage(), 2**40, (1,), (1,)),
        "a negative offset": lambda t: t.set_(t.untyped_storage(), -1, (1,), (1,)),
    }


GROUPS: dict[str, Callable[..., dict[str, Change]]] = {
    "layouts": layouts,
    "results": results,
    "storages": storages,
    "nonsense": nonsense,
}


def state(tensor: torch.Tensor) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        storage.nbytes(),
        storage.data_ptr(),
    )


def try_all(message: bytes, begin: int, group: str, *arguments: int) -> dict[str, str]:
    """Each way of a group on a received tensor's elements from `begin` on.

    What came out by way: "done", "refused: <text>", or what has changed though it was refused.
    """
    outcome = {}
    for way, change in GROUPS[group](*arguments).items():
        remote.receive("whole", message)
        whole = remote.HELD["whole"]
        tensor = whole[begin:] if begin else whole
        values = sim.read(whole)
        before = state(tensor)
        try:
            change(tensor)
        except RuntimeError as error:
            same = state(tensor) == before and torch.equal(sim.read(whole), values)
            text = str(error).splitlines()[0]
            outcome[way] = f"refused: {text}" if same else f"changed: {before} to {state(tensor)}"
        else:
            outcome[way] = f"done: {state(tensor)[0]}"
            assert state(tensor)[3:] == before[3:], "it has another storage"
        del tensor, whole
        remote.drop("whole")
    return outcome


def take_another_storage(message: bytes) -> list[float]:
    """What a received tensor may become: any tensor, by set_ and by data; its memory goes back."""
    for way in ("set_", "set_ storage", "data"):
        remote.receive("t", message)
        tensor = remote.HELD["t"]
        larger = sim.full((4 * tensor.numel(),), 3.0)
        if way == "set_":
            tensor.set_(larger)
        elif way == "set_ storage":
            tensor.set_(larger.untyped_storage(), 0, larger.shape, larger.stride())
        else:
            tensor.data = larger
        assert torch.equal(sim.read(tensor), sim.read(larger))
        assert not torch.ops.limbo.is_received(tensor)
        remote.drop("t")
        del tensor
    return [float(sim.read(larger)[0])]


def into_a_received_storage(message: bytes) -> tuple[str, list[float]]:
    """An own tensor is set onto a received storage: what fits, and what does not."""
    remote.receive("t", message)
    storage = remote.HELD["t"].untyped_storage()
    own = sim.full((3,), 9.0)
    own.set_(storage, 2, (4,), (1,))
    values: list[float] = sim.read(own).tolist()
    try:
        own.set_(storage, 2, (storage.nbytes() // 4,), (1,))
    except RuntimeError as error:
        text = str(error).splitlines()[0]
    else:
        text = "done"
    assert tuple(own.shape) == (4,)
    assert sim.read(own).tolist() == values
    remote.drop("t")
    return text, values
