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


@pytest.fixture
def process_that_sees(_needs_two_gpus: None) -> Iterator[Callable[..., Peer]]:
    """Starts processes that see these GPUs, in this order, and have Limbo as their allocator. What
    still lives at the end of the test has to end well."""
    import several_remote as remote
    from peer import Peer

    started: list[Peer] = []

    def start(visible: str, limbo: bool = True) -> Peer:
        peer = Peer(CUDA_VISIBLE_DEVICES=visible, LIMBO_DEVICE="cuda")
        started.append(peer)
        peer.call(remote.begin, limbo)
        return peer

    yield start
    for peer in started:
        if peer.process.is_alive():
            peer.stop()
