"""CUDA graphs that use received tensors keep them claimed for as long as they live.

A graph reads and writes its tensors' memory at every replay, whether the tensors live or not, and
nothing shows which ones it uses. So every received tensor of the device that lives when torch
begins a capture, or before it ends one, stays claimed until that graph is destroyed.

Seen are the captures of ``torch.cuda.CUDAGraph``, and so of ``torch.cuda.graph``,
``make_graphed_callables`` and ``torch.compile``. Whoever captures by other means calls
``limbo_keep_for_graph`` of the library (C), or ``Sharing::keep_for_graph`` (C++).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

import torch

from . import _library


def keep_for_graph() -> bool:
    """Keep what was received for the graph that the current stream is being captured into.

    False where it is not being captured, and where nothing was received. Errors: ``device_error``.
    """
    if not _library.is_loaded():
        return False
    stream = torch.cuda.current_stream()
    kept = ctypes.c_int(0)
    _library.check(
        _library.load().limbo_keep_for_graph(
            stream.device_index, stream.cuda_stream, ctypes.byref(kept)
        )
    )
    return kept.value == 1


def follow_captures(graph: Any = torch.cuda.CUDAGraph) -> None:
    """Have the captures of this class keep what they use. A second call does nothing."""
    if getattr(graph.capture_begin, "follows_limbo", False):
        return
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *arguments: Any, **named: Any) -> Any:
        result = begin(self, *arguments, **named)
        try:
            keep_for_graph()
        except BaseException:
            # Whoever sees this end in an error does not end the capture.
            with contextlib.suppress(RuntimeError):
                end(self)
            raise
        return result

    @functools.wraps(end)
    def capture_end(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            keep_for_graph()
        finally:  # a capture that is not ended would spoil everything behind it
            result = end(self, *arguments, **named)
        return result

    capture_begin.follows_limbo = True  # type: ignore[attr-defined]
    graph.capture_begin, graph.capture_end = capture_begin, capture_end
