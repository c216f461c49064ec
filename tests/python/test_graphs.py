"""What torch's captures call: a stand-in for torch's class, since a capture needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from torch_limbo import graphs


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
    monkeypatch.setattr(graphs, "keep_for_graph", lambda: graph.calls.append("keep"))
    graphs.follow_captures(Followed)
    return graph


def test_what_is_received_is_kept_inside_of_the_capture(followed: Graph) -> None:
    followed.capture_begin(pool="p", capture_error_mode="relaxed")
    followed.capture_end()
    assert followed.calls == ["begin p relaxed", "keep", "keep", "end"]


def test_a_second_call_changes_nothing(followed: Graph) -> None:
    graphs.follow_captures(type(followed))
    followed.capture_begin()
    assert followed.calls == ["begin None global", "keep"]


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
    assert followed.calls == ["begin None global", "end"]


def test_torchs_own_captures_are_followed() -> None:
    import torch

    assert torch.cuda.CUDAGraph.capture_begin.follows_limbo  # type: ignore[attr-defined]
