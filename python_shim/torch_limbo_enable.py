"""What ``LIMBO_ENABLE=1`` does: Limbo becomes the CUDA allocator right behind ``import torch``.

``torch_limbo_enable.pth`` lies beside this file in an environment's site-packages, so that every
Python that starts there reads its one line. Without the variable that line looks into
``os.environ`` and nothing more; with it this module is imported (not torch, and not torch_limbo)
and waits for torch to be imported. A program that never imports torch never hears of Limbo.

A program that asked for Limbo and cannot have it is warned, and goes on with torch's allocator: the
variable reaches every process that it starts, tools and helpers too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = (
    False  # typing's own, without its import: every Python of the environment comes here
)
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: torch came by the import of torch_limbo, which is not complete yet: it calls `enable` at its end.
pending = False


class TorchFinder:
    """A finder of sys.meta_path that leaves finding torch to the others, and waits for its end."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec of torch as the other finders give it; None for every other module."""
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            ours = isinstance(finder, TorchFinder)
            find = None if ours else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                _follow(spec.loader)
                return spec
        return None


def arm() -> None:
    """Wait for the import of torch. Called by the .pth file, before any of the program runs; by
    several where Limbo is installed several times, or a folder is read twice."""
    if "torch" not in sys.modules and not any(isinstance(f, TorchFinder) for f in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder())


def enable() -> None:
    """Make Limbo the allocator, or warn why it is not."""
    global pending
    pending = False
    wanted = os.environ.get("LIMBO_ENABLE", "")
    if wanted != "1":
        _warn(f'LIMBO_ENABLE is "{wanted}". Use 1, or 0 for not at all.')
        return
    try:
        from torch_limbo import enable as enable_limbo

        enable_limbo()
    except Exception as error:  # whatever it is, the program goes on as without Limbo
        code = getattr(error, "code", type(error).__name__)
        _warn(f"LIMBO_ENABLE=1 had no effect, torch keeps its own allocator: {code}: {error}")


def _warn(text: str) -> None:
    import warnings

    warnings.warn(text, RuntimeWarning, stacklevel=3)


def _follow(loader: Any) -> None:
    """Call `enable` when `loader` has executed torch."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def execute_and_enable(module: ModuleType) -> None:
        execute(module)
        _torch_is_there()

    loader.exec_module = execute_and_enable


def _torch_is_there() -> None:
    global pending
    limbo = sys.modules.get("torch_limbo")
    if limbo is not None and getattr(limbo.__spec__, "_initializing", False):
        pending = True
    else:
        enable()
