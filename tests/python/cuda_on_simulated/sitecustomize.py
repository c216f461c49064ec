"""A few of torch's CUDA operators on the simulated device, for the examples of the documents.

Python runs this file at its start where its folder is on PYTHONPATH, and so in every process that
an example starts. With LIMBO_DEVICE=simulated, importing torch_limbo then gives torch what makes
``torch.ones(3, device="cuda").sum().item()`` work without a driver: memory is the simulated GPU's,
and values are computed on the host. Nothing of Limbo is replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

#: What the examples use beside making and copying tensors.
OPERATORS = (
    "_local_scalar_dense",
    "add.Tensor",
    "add_.Tensor",
    "eq.Tensor",
    "equal",
    "fill_.Scalar",
    "mul.Tensor",
    "mul_.Tensor",
    "sum",
    "zero_",
)


def put_in_operators() -> None:
    import warnings

    import torch

    limbo, aten = torch.ops.limbo, torch.ops.aten

    def index_of(device: torch.device | None) -> int:
        return device.index or 0 if device is not None else 0

    # torch hands over some arguments by position and some by name.
    def empty(
        size: Any, dtype: Any = None, _layout: Any = None, device: Any = None, *_: Any, **__: Any
    ) -> Any:
        dtype = torch.get_default_dtype() if dtype is None else dtype
        return limbo.sim_empty(list(size), dtype=dtype, device=index_of(device))

    def empty_strided(size: Any, stride: Any, *others: Any, **named: Any) -> Any:
        reach = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        flat = empty([reach if all(size) else 0], *others, **named)
        return flat.as_strided(size, stride)

    def copy_(to: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        values = limbo.sim_read(source) if source.is_cuda else source
        if not to.is_cuda:
            return to.copy_(values)
        limbo.sim_write(to, values.to(to.dtype).expand(to.shape).contiguous())
        return to

    def on_host(value: Any) -> Any:
        return limbo.sim_read(value) if isinstance(value, torch.Tensor) and value.is_cuda else value

    def on_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return copy_(empty(value.shape, value.dtype), value)

    def computed_on_host(operator: Any) -> Callable[..., Any]:
        writes = operator._schema.arguments[0].alias_info is not None

        def call(first: torch.Tensor, *others: Any, **named: Any) -> Any:
            host = on_host(first)
            result = operator(host, *map(on_host, others), **named)
            return copy_(first, host) if writes else on_device(result)

        return call

    kernels: dict[str, Callable[..., Any]] = {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "copy_": copy_,
    }
    for name in OPERATORS:
        packet, _, overload = name.partition(".")
        kernels[name] = computed_on_host(getattr(getattr(aten, packet), overload or "default"))
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells of every kernel that is replaced
        for name, kernel in kernels.items():
            library.impl(name, kernel, "CUDA")
    torch.cuda._limbo_kernels = library  # type: ignore[attr-defined]  # they end with it
    torch.cuda._lazy_init = lambda: None  # it would look for a driver


class _BehindTorchLimbo(importlib.abc.MetaPathFinder):
    """Puts the operators in as soon as torch_limbo has been imported."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch_limbo":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            put_in_operators()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("LIMBO_DEVICE") == "simulated":
    sys.meta_path.insert(0, _BehindTorchLimbo())
