"""Kinds of tensors that tests send to another process, and what it says about them (peer.py)."""

from __future__ import annotations

from typing import Any

import remote
import sim
import sim_torch
import torch

assert sim_torch.is_in_place()


class Tagged(torch.Tensor):
    """A subclass with an attribute."""

    tag: str = ""


class TwoTensors(torch.Tensor):
    """A subclass that wraps two tensors and has no storage of its own."""

    a: torch.Tensor
    b: torch.Tensor

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> TwoTensors:
        made: TwoTensors = torch.Tensor._make_wrapper_subclass(
            cls, a.shape, dtype=a.dtype, device=a.device
        )
        made.a, made.b = a, b
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"{function} of {types}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (TwoTensors, (self.a, self.b))


class Counted(torch.nn.Parameter):
    """A subclass of Parameter."""


def values_of(tensor: torch.Tensor) -> Any:
    plain = tensor.detach().as_subclass(torch.Tensor)
    return (sim.read(plain) if plain.is_cuda else plain).tolist()


def facts(value: Any) -> Any:
    """What a value is, with its numbers; of what is made of several tensors, of each."""
    if isinstance(value, torch.UntypedStorage):
        whole = sim.empty(0, dtype=torch.uint8)
        return ("storage", values_of(whole.set_(value)))
    if isinstance(value, torch.TypedStorage):
        return (str(value.dtype), facts(value._untyped_storage))
    if isinstance(value, torch.nn.Module):
        return {name: facts(parameter) for name, parameter in value.named_parameters()}
    if isinstance(value, (tuple, list)):
        return [facts(each) for each in value]
    if isinstance(value, TwoTensors):
        return ("two", facts(value.a), facts(value.b))
    if value.is_nested:
        return ("jagged", facts(value._values), facts(value._offsets))
    if value.layout is torch.sparse_csr:
        parts = (value.crow_indices(), value.col_indices(), value.values())
        return ("csr", tuple(value.shape), [facts(part) for part in parts])
    return (
        type(value).__name__,
        getattr(value, "tag", None),
        str(value.dtype),
        tuple(value.shape),
        value.stride(),
        value.storage_offset(),
        value.requires_grad,
        value.is_leaf,
        values_of(value),
    )


def facts_of(name: str) -> Any:
    return facts(remote.HELD[name])
