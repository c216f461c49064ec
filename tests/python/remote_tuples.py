"""What tests of reduced tensors let another process do (peer.py).

Tuples travel here as frameworks send them: pickled by plain ``pickle``, by whatever road.
"""

from __future__ import annotations

import pickle
from typing import Any

import remote
import sim
import sim_torch
import torch
import torch.multiprocessing.reductions as torch_reductions
import torch_limbo

assert sim_torch.is_in_place()


def reduced(tensor: torch.Tensor) -> bytes:
    """The fifteen positions of a tensor."""
    function, arguments = torch_reductions.reduce_tensor(tensor)
    assert function is torch_reductions.rebuild_cuda_tensor
    return pickle.dumps(arguments)


def make(name: str, shape: tuple[int, ...], value: float) -> bytes:
    """Make a tensor here, keep it, and give its tuple."""
    remote.HELD[name] = sim.full(shape, value)
    return reduced(remote.HELD[name])


def reduce_often(name: str, count: int) -> None:
    """Reduce a tensor and throw the tuple away."""
    for _ in range(count):
        torch_reductions.reduce_tensor(remote.HELD[name])


def rebuild_pairs(name: str) -> dict[str, float]:
    """Rebuild the (function, arguments) pairs that came in an object, and keep nothing."""
    pairs: dict[str, Any] = remote.HELD[name].pairs
    return {
        key: float(sim.read(function(*args)).flatten()[0])
        for key, (function, args) in pairs.items()
    }


def loads_and_keep(name: str, data: bytes) -> list[float]:
    """Open what ForkingPickler has pickled for a process: {"weights": tensor}."""
    remote.HELD[name] = pickle.loads(data)["weights"]
    values: list[float] = sim.read(remote.HELD[name]).tolist()
    return values


def open_all(names: list[str], tuples: list[bytes]) -> list[float]:
    """Rebuild each tuple, keep it, answer with the first values."""
    values = []
    for name, data in zip(names, tuples, strict=True):
        remote.HELD[name] = torch_reductions.rebuild_cuda_tensor(*pickle.loads(data))
        values.append(float(sim.read(remote.HELD[name]).flatten()[0]))
    return values


def open_by_torchs_own(names: list[str], tuples: list[bytes]) -> list[float]:
    """The same by torch's code as it was before the package was imported."""
    values = []
    for name, data in zip(names, tuples, strict=True):
        arguments: Any = pickle.loads(data)
        remote.HELD[name] = torch_limbo.reductions._stock_rebuild_cuda_tensor(*arguments)
        values.append(float(sim.read(remote.HELD[name]).flatten()[0]))
    return values


#: The buffer of a weight sync, and the weights that it fills: name -> tensor.
BUCKET = "bucket"


def take_bucket(data: bytes | None, entries: list[tuple[str, tuple[int, ...], int]]) -> list[float]:
    """One bucket: open its tuple if there is a new one, and give each entry's sum.

    An entry is a name, a shape, and where it begins in the bucket, in elements. Nothing of a bucket
    that came with a tuple of its own is kept.
    """
    if data is None:
        bucket = remote.HELD[BUCKET]
    else:
        bucket = torch_reductions.rebuild_cuda_tensor(*pickle.loads(data))
    flat = sim.read(bucket)  # on the CPU: the engine's own weights
    torch.ops.limbo.sim_synchronize(0)
    sums = []
    for name, shape, begin in entries:
        count = torch.Size(shape).numel()
        weight = flat[begin : begin + count].view(shape).clone()
        remote.HELD[f"weight {name}"] = weight
        sums.append(float(weight.double().sum()))
    return sums


def keep_bucket(data: bytes) -> None:
    """Open the tuple of a buffer that serves for all buckets."""
    remote.HELD[BUCKET] = torch_reductions.rebuild_cuda_tensor(*pickle.loads(data))
