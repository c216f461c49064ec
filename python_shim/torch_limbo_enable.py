"""What ``LIMBO_ENABLE=1`` does: Limbo becomes the CUDA allocator right behind ``import torch``.

``torch_limbo_enable.pth`` lies beside this file in an environment's site-packages, so that every
Python that starts there reads its one line. Without the variable that line looks into
``os.environ`` and nothing more; with it this module is imported (not torch, and not torch_limbo)
and waits for torch to be imported. A program that never imports torch never hears of Limbo.

A program that asked for Limbo and cannot have it is warned, and goes on with torch's allocator: the
variable reaches every process that it starts, tools and helpers too.
"""

from __future__ import annotations

import _thread
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

    def __init__(self) -> None:
        self._asking: set[int] = set()  # threads: another finder may ask all of them again, us too

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec of torch as the other finders give it; None for every other module."""
        thread = _thread.get_ident()
        if name != "torch" or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            spec = _found_by_others(name, path, target)
        finally:
            self._asking.remove(thread)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _TellingLoader(spec.loader)  # type: ignore[assignment]
        return spec


def _found_by_others(
    name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = None if isinstance(finder, TorchFinder) else getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None


class _TellingLoader:
    """Stands in a spec for the loader that was found, until that one has executed the module.

    Nothing is set on the other, which may be shared, or hand on to a third what is set on it. Who
    looks at the spec before finds all that the other has.
    """

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        if name == "_found":  # a copy in the making
            raise AttributeError(name)
        return getattr(self._found, name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module to the loader that was found, and tell when it is there."""
        for holder, name in ((module, "__loader__"), (module.__spec__, "loader")):
            if getattr(holder, name, None) is self:
                setattr(holder, name, self._found)
        self._found.exec_module(module)
        _torch_is_there()


def arm() -> None:
    """Wait for the import of torch. Called by the .pth file, before any of the program runs; by
    several where Limbo is installed several times, or a folder is read twice. Where an earlier .pth
    file has imported torch already there is nothing to wait for."""
    if any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, TorchFinder())
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        _warn(
            "LIMBO_ENABLE=1 had no effect: torch was being imported before Limbo could wait for it"
        )
    else:
        _torch_is_there()


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


def _torch_is_there() -> None:
    global pending
    limbo = sys.modules.get("torch_limbo")
    if limbo is not None and getattr(limbo.__spec__, "_initializing", False):
        pending = True
    else:
        enable()
