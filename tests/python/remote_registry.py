"""What tests of the registry let another process do (peer.py)."""

from __future__ import annotations

import gc
import os
from typing import Any

import remote
import sim
import torch
import torch_limbo


def publish(space: str, name: str, shape: tuple[int, ...], value: float) -> None:
    """Publish a tensor that only the registry keeps."""
    torch_limbo.Registry(space).publish(name, sim.full(shape, value))


def unpublish(space: str, name: str) -> bool:
    result = torch_limbo.Registry(space).unpublish(name)
    gc.collect()
    return result


def acquire(space: str, name: str, keep_as: str) -> torch.Tensor:
    """Acquire, keep the tensor, answer with its values."""
    remote.HELD[keep_as] = torch_limbo.Registry(space).acquire(name)
    return sim.read(remote.HELD[keep_as])


def acquire_many(space: str, name: str, count: int) -> list[float]:
    """The first value of each of `count` acquires; nothing is kept."""
    registry = torch_limbo.Registry(space)
    return [float(sim.read(registry.acquire(name)).flatten()[0]) for _ in range(count)]


def release(keep_as: str) -> tuple[int, int]:
    """Release what is held under a name; elements and bytes that it has left."""
    tensor = remote.HELD[keep_as]
    torch_limbo.Registry().release(tensor)
    return tensor.numel(), tensor.untyped_storage().nbytes()


def code_of(method: str, space: str, *arguments: Any) -> str:
    """The code of the error that a method of a registry raises; "" for none."""
    try:
        getattr(torch_limbo.Registry(space), method)(*arguments)
    except torch_limbo.LimboError as error:
        return error.code
    return ""


def names(space: str) -> list[tuple[str, int]]:
    return [(found.name, found.owner.pid) for found in torch_limbo.Registry(space).names()]


def holders(space: str, name: str) -> list[torch_limbo.Holder]:
    return torch_limbo.Registry(space).holders(name)


def own_process() -> torch_limbo.LendingProcess:
    (own,) = [found for found in torch_limbo.processes() if found.pid == os.getpid()]
    return own
