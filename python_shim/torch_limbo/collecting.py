"""``torch.cuda.ipc_collect()`` takes back what was sent by Limbo, too.

torch collects what it has lent in its own way (``enable(multiprocessing="stock")``, memory of other
allocators) and knows nothing of the rest. A program that calls it means all that was lent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _library
from .errors import limbo_errors
from .replaced import put_in_front


def ipc_collect() -> Any:
    """What torch's does, then `collect`: in this order, as what torch gives back may be lent by
    Limbo as well. Never blocks. Errors: torch's, where CUDA cannot be used."""
    result = None if _library.simulated_is_chosen() else _stock_ipc_collect()
    if _library.is_loaded():
        with limbo_errors():
            torch.ops.limbo.collect()
    return result


def _body_of_ipc_collect():  # type: ignore[no-untyped-def]
    from torch_limbo import collecting

    return collecting.ipc_collect()


_stock_ipc_collect: Callable[[], Any] = torch.cuda.ipc_collect


def follow_ipc_collect() -> None:
    """Put `ipc_collect` in front of torch's. A second call does nothing."""
    global _stock_ipc_collect
    _stock_ipc_collect, _ = put_in_front(
        torch.cuda, "ipc_collect", _body_of_ipc_collect, ipc_collect
    )
