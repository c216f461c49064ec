"""Limbo: a CUDA caching allocator for PyTorch whose memory can be lent to other processes.

::

    import torch_limbo
    torch_limbo.enable()                   # before CUDA memory is used

    queue.put(tensor)                      # of torch.multiprocessing: the memory is lent
    message = torch_limbo.share(tensor)    # or as bytes, by any road
    tensor = torch_limbo.receive(message)  # in the other process

    torch_limbo.Registry().publish("weights", tensor)      # or under a name
    tensor = torch_limbo.Registry().acquire("weights")     # in any other process

Importing the package loads the library and lets ``torch.multiprocessing`` send and receive by
Limbo's descriptors. It starts no CUDA and no thread, and works on a machine without a GPU; where
the library is missing, the first call that needs it says so. Under another minor version of torch
than the one that it is for it raises ``LimboError`` (``wrong_torch``).
"""

from __future__ import annotations

import sys

from . import _torch
from ._version import __version__

__all__ = [
    "Holder",
    "LendingProcess",
    "LimboAllocator",
    "LimboError",
    "Option",
    "PublishedName",
    "Reaped",
    "Registry",
    "__version__",
    "collect",
    "enable",
    "graphs",
    "holders",
    "is_orphaned",
    "library_path",
    "options",
    "processes",
    "reap",
    "receive",
    "reductions",
    "share",
    "stats",
    "withdraw",
]

_refusal = _torch.refusal()
if _refusal is not None and not _torch.runs_as_command():
    raise _refusal
if _refusal is None:
    from . import _library, collecting, graphs, reductions
    from ._library import library_path
    from .api import (
        LimboAllocator,
        collect,
        enable,
        holders,
        is_orphaned,
        options,
        processes,
        reap,
        receive,
        share,
        stats,
        withdraw,
    )
    from .errors import LimboError
    from .records import Holder, LendingProcess, Option, Reaped
    from .registry import PublishedName, Registry

    _library.available()
    graphs.follow_captures()
    collecting.follow_ipc_collect()
    # LIMBO_ENABLE=1, and torch came by this very import.
    if (_armed := sys.modules.get("torch_limbo_enable")) is not None and _armed.pending:
        _armed.enable()
