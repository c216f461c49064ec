"""CUDA graphs that use received tensors keep them claimed for as long as they live.

A graph reads and writes its tensors' memory at every replay, whether the tensors live or not, and
nothing shows which ones it uses. So every received tensor of the device that lives when torch
begins a capture, or before it ends one, stays claimed until that graph is destroyed.

A capture that begins while another thread releases or sends on its stream would be lost. So its
beginning is announced, and the others wait for that moment.

Seen are the captures of ``torch.cuda.CUDAGraph``, and so of ``torch.cuda.graph``,
``make_graphed_callables`` and ``torch.compile``. Whoever captures by other means does the same by
``beginning_capture`` and ``keep_for_graph`` here, by the library's functions that these call (C),
or by ``BeginningCapture`` and ``Sharing::keep_for_graph`` (C++).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import torch

from . import _library

__all__ = ["beginning_capture", "keep_for_graph"]


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


@contextlib.contextmanager
def beginning_capture() -> Iterator[None]:
    """``with beginning_capture():`` around the beginning of a capture of the current stream, and
    nothing else.

    Waits, at most 100 ms, for other threads of this process that release or send just now. Errors:
    ``device_error``.
    """
    if not _library.is_loaded():
        yield
        return
    library = _library.load()
    stream = torch.cuda.current_stream()
    announcement = ctypes.c_uint64(0)
    _library.check(
        library.limbo_announce_capture(
            stream.device_index, stream.cuda_stream, ctypes.byref(announcement)
        )
    )
    try:
        yield
    finally:
        _library.check(library.limbo_withdraw_capture(announcement))


def follow_captures(graph: Any = torch.cuda.CUDAGraph) -> None:
    """Have the captures of this class keep what they use. A second call does nothing."""
    if getattr(graph.capture_begin, "follows_limbo", False):
        return
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *arguments: Any, **named: Any) -> Any:
        begun = False
        try:
            with beginning_capture():
                result = begin(self, *arguments, **named)
                begun = True
            keep_for_graph()
        except BaseException:
            if begun:
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
