"""What every Python test gets: a device, a runtime directory of its own, balance checks.

Tests run on the simulated device, unless the environment says otherwise; those under gpu/ start
processes of their own on the GPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from peer import Peer

ROOT = Path(__file__).resolve().parent.parent.parent
_SANDBOX = tempfile.TemporaryDirectory(prefix="limbo-pytest-")


def _prepare_environment() -> None:
    """Before torch_limbo is imported here or in any child."""
    os.environ.setdefault("LIMBO_DEVICE", "simulated")
    os.environ.setdefault("LIMBO_SIM_MACHINE", os.path.join(_SANDBOX.name, "machine"))
    if "LIMBO_RUNTIME_DIR" not in os.environ:
        runtime = os.path.join(_SANDBOX.name, "run")
        os.mkdir(runtime, 0o700)
        os.environ["LIMBO_RUNTIME_DIR"] = runtime
    here = [str(Path(__file__).parent)]
    if "LIMBO_TEST_INSTALLED" not in os.environ:  # else an installed copy is on PYTHONPATH
        here.insert(0, str(ROOT / "python_shim"))
    for path in reversed(here):
        if path not in sys.path:
            sys.path.insert(0, path)
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(here + ([rest] if rest else []))


_prepare_environment()


@pytest.fixture(scope="session")
def shared_peer() -> Iterator[Peer]:
    """One other process for all tests that only need somebody who receives.

    Lends in both directions once, so that what a first use opens and keeps (ledgers, sockets, the
    helpers of multiprocessing) is there before any test compares.
    """
    import remote
    import sim
    import torch
    import torch_limbo
    from peer import Peer

    peer = Peer()
    peer.call(remote.receive, "warm-up", torch_limbo.share(sim.full((1,), 1.0)))
    assert sim.read(torch_limbo.receive(peer.call(remote.make, "own", (1,), 1.0))).item() == 1.0
    peer.call(remote.keep, "cpu", torch.ones(1))
    peer.call(remote.drop_all)
    yield peer
    peer.stop()


@pytest.fixture
def balanced(shared_peer: Peer) -> Iterator[None]:
    """At the end of the test both processes are as before: memory, exports, limbo, descriptors."""
    import remote
    from balance import Balance

    assert shared_peer.process.is_alive()
    shared_peer.call(remote.take_balance)
    balance = Balance()
    yield
    balance.check()
    shared_peer.call(remote.check_balance)
