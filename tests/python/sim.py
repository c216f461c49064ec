"""CUDA-typed tensors over the simulated GPU's memory, and what can be done with them."""

from __future__ import annotations

import torch
import torch_limbo

assert torch_limbo.library_path().exists()  # the operators below need it

_OPS = torch.ops.limbo


def empty(*shape: int, dtype: torch.dtype = torch.float32, device: int = 0) -> torch.Tensor:
    made: torch.Tensor = _OPS.sim_empty(list(shape), dtype=dtype, device=device)
    return made


def full(
    shape: tuple[int, ...], value: float, dtype: torch.dtype = torch.float32, device: int = 0
) -> torch.Tensor:
    made = empty(*shape, dtype=dtype, device=device)
    _OPS.sim_fill(made, value)
    return made


def of(values: torch.Tensor, device: int = 0) -> torch.Tensor:
    """A copy of a CPU tensor on the simulated GPU."""
    made = empty(*values.shape, dtype=values.dtype, device=device)
    _OPS.sim_write(made, values)
    return made


def synchronize(device: int = 0) -> None:
    """Wait for all that this process has queued."""
    _OPS.sim_synchronize(device)


def read(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU."""
    values: torch.Tensor = _OPS.sim_read(tensor.detach())
    return values


def fill(tensor: torch.Tensor, value: float) -> None:
    _OPS.sim_fill(tensor.detach(), value)
