"""Lets torch itself make CUDA tensors on the simulated device: importing it is enough.

torch's own CUDA kernels need a driver. With these few in their place, what torch does with received
storages (rebuilding a tensor around one, above all) runs without one. What computes stays away.
"""

from __future__ import annotations

import warnings
from typing import Any

import sim
import torch

_library = torch.library.Library("aten", "IMPL")


def _empty(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> torch.Tensor:
    index = device.index if device is not None and device.index is not None else 0
    return sim.empty(*size, dtype=dtype or torch.get_default_dtype(), device=index)


def _empty_strided(size: Any, stride: Any, **named: Any) -> torch.Tensor:
    reach = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    made = _empty([0 if 0 in size else reach], **named)
    return made.set_(made.untyped_storage(), 0, tuple(size), tuple(stride))


def _lazy_init() -> None:
    """What torch.cuda does before it touches a GPU; here there is none."""


def is_in_place() -> bool:
    """Whether torch makes CUDA tensors here: for those who import this for its effect."""
    return torch.empty(0, device="cuda:0").is_cuda


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that torch's own are overridden
    _library.impl("empty.memory_format", _empty, "CUDA", allow_override=True)
    _library.impl("empty_strided", _empty_strided, "CUDA", allow_override=True)
torch.cuda._lazy_init = _lazy_init
