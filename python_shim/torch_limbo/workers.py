"""What the worker of a DataLoader has sent, and what becomes of it at the worker's end.

A process that ends waits until what it has sent has been opened (``exit_drain_ms``). A worker's end
says that its loader wants no more: torch tells it to end when the iterator has given its last batch
or is let go of, or when it has read that the worker has no more, which comes behind all its batches
(torch/utils/data/_utils/worker.py). So what is unopened by then is a batch that was made in advance
for an iterator that is gone. It is taken back, and the exit waits for the rest alone: for work that
is queued for batches that were opened, and for these to be mapped.
"""

from __future__ import annotations

import sys
from collections import deque

import torch

from . import _library

#: So many messages are remembered at least; those in flight are the last ones, since batches are
#: opened in the order in which they are sent.
_REMEMBERED = 1024

# Several threads use it, and so may a fork child: no lock, a deque's own steps are whole.
_sent: deque[torch.Tensor] = deque()
_forget_at = 2 * _REMEMBERED
_ends = False


def note(message: torch.Tensor) -> None:
    """Remember a message that is being sent, if this process is a worker."""
    data = sys.modules.get("torch.utils.data")
    if data is None or data.get_worker_info() is None:
        return
    _sent.append(message)
    if _ends:  # by a queue's thread that had not come so far
        take_back_unopened()
    elif len(_sent) >= _forget_at:
        _forget_opened()


def _forget_opened() -> None:
    global _forget_at
    torch.ops.limbo.collect()
    in_flight = _library.json_of(_library.load().limbo_stats_json())["sharing"]["in_flight"]
    keep = max(int(in_flight), _REMEMBERED)
    while len(_sent) > keep:
        _sent.popleft()
    _forget_at = 2 * keep


def take_back_unopened() -> None:
    """At the end of a worker: withdraw what it has sent, which who has opened it keeps."""
    global _ends
    _ends = True
    while _sent:
        try:
            torch.ops.limbo.withdraw(_sent.pop())
        except IndexError:  # another thread was quicker
            return
        except RuntimeError as error:
            # Memory of another process that was sent on, and that one cannot be told any more.
            if "limbo[no_channel]" in str(error) or "limbo[forked_child]" in str(error):
                _sent.clear()
