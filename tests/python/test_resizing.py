"""Every way to another size: what does not fit is refused before anything has changed."""

from __future__ import annotations

import pytest
import remote_resizing
import sim
import torch
import torch_limbo
from peer import Peer

pytestmark = pytest.mark.usefixtures("balanced")

ELEMENTS = 64


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


def numbers() -> torch.Tensor:
    return sim.of(torch.arange(ELEMENTS, dtype=torch.float32))


def outcomes(peer: Peer, *arguments: object) -> dict[str, str]:
    """What the ways of a group did to a received tensor of ELEMENTS elements."""
    tensor = numbers()
    message = torch_limbo.share(tensor)
    found: dict[str, str] = peer.call(remote_resizing.try_all, message, *arguments)
    assert len(found) > 1
    assert sim.read(tensor).tolist() == list(range(ELEMENTS))  # nothing was written
    return found


@pytest.mark.parametrize("begin", [0, 16])
@pytest.mark.parametrize("size", [1, 0, 47])
def test_what_fits_works(peer: Peer, begin: int, size: int) -> None:
    for way, outcome in outcomes(peer, begin, "layouts", size).items():
        assert outcome.startswith("done: "), f"{way}: {outcome}"
        assert str(size) in outcome


@pytest.mark.parametrize("group", ["layouts", "results"])
@pytest.mark.parametrize(("begin", "size"), [(0, ELEMENTS + 1), (0, 1 << 20), (16, ELEMENTS + 1)])
def test_what_does_not_fit_is_refused(peer: Peer, group: str, begin: int, size: int) -> None:
    for way, outcome in outcomes(peer, begin, group, size).items():
        assert outcome.startswith("refused: "), f"{way}: {outcome}"
        assert "not resizable" in outcome, f"{way}: {outcome}"
        assert "received from another process" in outcome, f"{way}: {outcome}"


def test_a_view_may_not_reach_behind_its_storage(peer: Peer) -> None:
    """From its own offset on: where the storage is long enough, and the rest of it is not."""
    found = outcomes(peer, 16, "layouts", ELEMENTS - 15)
    for way, outcome in found.items():
        fits = way == "set_ to its storage"  # from the beginning
        assert outcome.startswith("done" if fits else "refused"), f"{way}: {outcome}"


@pytest.mark.parametrize("size_bytes", [0, 4, 4 * ELEMENTS, 8 * ELEMENTS])
def test_a_storage_keeps_its_size(peer: Peer, size_bytes: int) -> None:
    for way, outcome in outcomes(peer, 0, "storages", size_bytes).items():
        assert outcome.startswith("refused: "), f"{way}: {outcome}"
        assert "not resizable" in outcome, f"{way}: {outcome}"


def test_sizes_that_no_tensor_has(peer: Peer) -> None:
    for way, outcome in outcomes(peer, 0, "nonsense").items():
        assert outcome.startswith("refused: "), f"{way}: {outcome}"


def test_a_received_tensor_takes_another_storage(peer: Peer) -> None:
    tensor = numbers()
    message = torch_limbo.share(tensor)
    assert peer.call(remote_resizing.take_another_storage, message) == [3.0]
    del tensor


def test_an_own_tensor_takes_a_received_storage(peer: Peer) -> None:
    tensor = numbers()
    message = torch_limbo.share(tensor)
    text, values = peer.call(remote_resizing.into_a_received_storage, message)
    assert values == [2.0, 3.0, 4.0, 5.0]
    assert "not resizable" in text
    del tensor
