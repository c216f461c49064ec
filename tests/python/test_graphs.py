"""What torch's captures call: a stand-in for torch's class, since a capture needs a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from torch_limbo import _library, graphs
from torch_limbo.errors import LimboError


class Graph:
    """Says what is called."""

    calls: list[str]

    def __init__(self) -> None:
        self.calls = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self.calls.append(f"begin {pool} {capture_error_mode}")

    def capture_end(self) -> None:
        self.calls.append("end")


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class whose captures are followed; what is kept is noted by the graph itself."""

    class Followed(Graph):
        pass

    graph = Followed()

    @contextlib.contextmanager
    def beginning() -> Iterator[None]:
        graph.calls.append("announce")
        try:
            yield
        finally:
            graph.calls.append("withdraw")

    monkeypatch.setattr(graphs, "keep_for_graph", lambda: graph.calls.append("keep"))
    monkeypatch.setattr(graphs, "beginning_capture", beginning)
    graphs.follow_captures(Followed)
    return graph


def test_what_is_received_is_kept_inside_of_the_capture(followed: Graph) -> None:
    followed.capture_begin(pool="p", capture_error_mode="relaxed")
    followed.capture_end()
    assert followed.calls == ["announce", "begin p relaxed", "withdraw", "keep", "keep", "end"]


def test_a_second_call_changes_nothing(followed: Graph) -> None:
    graphs.follow_captures(type(followed))
    followed.capture_begin()
    assert followed.calls == ["announce", "begin None global", "withdraw", "keep"]


def test_a_beginning_that_fails_is_withdrawn(followed: Graph) -> None:
    with pytest.raises(TypeError):
        followed.capture_begin(unknown=1)  # type: ignore[call-arg]
    assert followed.calls == ["announce", "withdraw"]


def test_an_announcement_is_named_to_its_withdrawal() -> None:
    library = _library.load()
    first, second = ctypes.c_uint64(0), ctypes.c_uint64(0)
    _library.check(library.limbo_announce_capture(0, None, ctypes.byref(first)))
    _library.check(library.limbo_announce_capture(0, None, ctypes.byref(second)))
    assert 0 < first.value < second.value
    for announcement in (first, second, first):  # one that has ended: nothing
        _library.check(library.limbo_withdraw_capture(announcement))
    with pytest.raises(LimboError, match="announcement is null"):
        _library.check(library.limbo_announce_capture(0, None, None))


def test_a_capture_ends_whatever_happens(followed: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> bool:
        raise RuntimeError("refused")

    monkeypatch.setattr(graphs, "keep_for_graph", fails)
    with pytest.raises(RuntimeError, match="refused"):
        followed.capture_end()
    assert followed.calls == ["end"]


def test_a_capture_whose_beginning_fails_is_ended(
    followed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The caller sees an error at its begin, and so will not end it.
    def fails() -> bool:
        raise RuntimeError("refused")

    monkeypatch.setattr(graphs, "keep_for_graph", fails)
    with pytest.raises(RuntimeError, match="refused"):
        followed.capture_begin()
    assert followed.calls == ["announce", "begin None global", "withdraw", "end"]


def test_torchs_own_captures_are_followed() -> None:
    import torch

    assert torch.cuda.CUDAGraph.capture_begin.follows_limbo  # type: ignore[attr-defined]
