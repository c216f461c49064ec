"""Tests on two GPUs, each in processes of its own. Without two they are skipped by name."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from peer import Peer

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent.parent
_SANDBOX = tempfile.TemporaryDirectory(prefix="limbo-pytest-")


def _prepare_environment() -> None:
    """Before torch_limbo is imported here or in any child."""
    os.environ["LIMBO_DEVICE"] = "cuda"
    if "LIMBO_RUNTIME_DIR" not in os.environ:
        os.environ["LIMBO_RUNTIME_DIR"] = _SANDBOX.name
    python = TESTS / "python"
    here = [HERE, python, python / "gpu", python / "gpu" / "scripts"]
    if "LIMBO_TEST_INSTALLED" not in os.environ:  # else an installed copy is on PYTHONPATH
        here.insert(0, TESTS.parent / "python_shim")
    for path in reversed(here):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, here), *([rest] if rest else [])])


_prepare_environment()


@pytest.fixture(autouse=True)
def _needs_two_gpus() -> None:
    from two_gpus import why_not_two_gpus

    reason = why_not_two_gpus()
    if reason:
        pytest.skip(f"needs two GPUs: {reason}")


@pytest.fixture(scope="session")
def _idle() -> Iterator[dict[str, list[Peer]]]:
    """Processes that no test uses now, by the GPUs that they see: CUDA takes a while to start."""
    idle: dict[str, list[Peer]] = {}
    yield idle
    for peer in [peer for peers in idle.values() for peer in peers]:
        peer.stop()


@pytest.fixture
def process_that_sees(
    _needs_two_gpus: None, _idle: dict[str, list[Peer]]
) -> Iterator[Callable[[str], Peer]]:
    """Processes that see these GPUs, in this order, and have Limbo as their allocator. Those that
    still live at the end of the test, and hold nothing, are used again."""
    import several_remote as remote
    from peer import Peer

    taken: list[tuple[str, Peer]] = []

    def take(visible: str) -> Peer:
        if _idle.get(visible):
            peer = _idle[visible].pop()
        else:
            peer = Peer(CUDA_VISIBLE_DEVICES=visible, LIMBO_DEVICE="cuda")
            peer.call(remote.begin)
        taken.append((visible, peer))
        return peer

    yield take
    for visible, peer in taken:
        if not peer.process.is_alive():
            continue
        if peer.call(remote.held):
            peer.stop()
        else:
            _idle.setdefault(visible, []).append(peer)
