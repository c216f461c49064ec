"""How programs treat torch.multiprocessing.reductions, and what Limbo must survive."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import remote
import sim
import torch
import torch.multiprocessing.reductions as torch_reductions
import torch_limbo
from peer import Peer
from torch_limbo import devices
from torch_limbo.devices import DeviceByUuid
from torch_limbo.reductions import LimboStorage, send_by_descriptor

pytestmark = pytest.mark.usefixtures("balanced")


def loads(data: Any) -> Any:
    return pickle.loads(data)


def test_the_fifteen_positions() -> None:
    tensor = sim.of(torch.arange(12, dtype=torch.int64)).view(3, 4)[1:, 1:]
    function, arguments = torch_reductions.reduce_tensor(tensor)
    assert function is torch_reductions.rebuild_cuda_tensor
    assert len(arguments) == 15
    assert arguments[0] is torch.Tensor
    assert arguments[1] == tensor.size()
    assert arguments[2] == tensor.stride()
    assert arguments[3] == 5
    assert arguments[4] is LimboStorage
    assert hasattr(arguments[4], "_new_shared_cuda")
    assert hasattr(arguments[4], "_release_ipc_counter")
    assert arguments[5] == torch.int64
    assert isinstance(arguments[6], int)
    assert arguments[6] == 0
    assert isinstance(arguments[7], bytes)
    assert arguments[8] == 96
    assert arguments[10] is False
    rebuilt = function(*arguments)
    assert torch.equal(sim.read(rebuilt), sim.read(tensor))
    del rebuilt, tensor


def test_the_device_index_says_by_uuid_until_somebody_writes_it() -> None:
    tensor = sim.full((3,), 1.0)
    function, arguments = torch_reductions.reduce_tensor(tensor)
    untouched = pickle.loads(pickle.dumps(arguments[6]))
    assert type(untouched) is DeviceByUuid
    for meant in (untouched, 0, torch.device("cuda", 0), "cuda:0"):
        written = (*arguments[:6], meant, *arguments[7:])
        assert function(*written).device == torch.device("cuda", 0)
    uuid = "11111111-2222-3333-4444-555555555555"
    for meant in (uuid, f"GPU-{uuid}", f"MIG-{uuid}", f"MIG-GPU-{uuid}/1/0"):
        written = (*arguments[:6], meant, *arguments[7:])
        with pytest.raises(torch_limbo.LimboError) as caught:
            function(*written)
        assert caught.value.code == "device_not_visible", meant
        assert meant in str(caught.value)
    del tensor


def test_a_uuid_finds_its_gpu_or_its_part_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = [f"1111111{index}-2222-3333-4444-55555555aAbB" for index in range(2)]
    properties = [types.SimpleNamespace(uuid=uuid) for uuid in uuids]
    monkeypatch.setattr(devices._library, "simulated", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])
    for index, uuid in enumerate(uuids):
        for meant in (uuid, f"GPU-{uuid}", f"MIG-{uuid}", f"MIG-{uuid}".upper()):
            assert devices.device_argument(meant) == index


def test_keywords_work_as_with_torch() -> None:
    tensor = sim.full((3,), 1.0)
    _, arguments = torch_reductions.reduce_tensor(tensor=tensor)
    code = torch_reductions.rebuild_cuda_tensor.__code__
    named = dict(zip(code.co_varnames[:15], arguments, strict=True))
    assert named["storage_cls"] is LimboStorage
    assert bool((sim.read(torch_reductions.rebuild_cuda_tensor(**named)) == 1.0).all())
    del tensor


def test_reductions_initialised_again() -> None:
    torch_reductions.init_reductions()
    tensor = sim.full((3,), 1.0)
    sends = torch_limbo.stats()["sends"]
    got = loads(ForkingPickler.dumps(tensor))
    assert got.data_ptr() == tensor.data_ptr()
    assert torch_limbo.stats()["sends"] == sends + 1
    del got, tensor


@pytest.fixture
def patched() -> Iterator[dict[str, int]]:
    """A program that puts functions of its own in torch's place, which write index 6."""
    original_reduce = torch_reductions.reduce_tensor
    original_rebuild = torch_reductions.rebuild_cuda_tensor
    calls = {"reduce": 0, "rebuild": 0}

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        calls["reduce"] += 1
        function, arguments = original_reduce(tensor)
        if function is torch_reductions.rebuild_cuda_tensor:
            arguments = (*arguments[:6], f"index {arguments[6]}", *arguments[7:])
        return function, arguments

    torch_reductions.reduce_tensor = reduce_tensor
    torch_reductions.rebuild_cuda_tensor = rebuild_and_count
    torch_reductions.init_reductions()
    rebuild_and_count.calls = calls  # type: ignore[attr-defined]
    rebuild_and_count.original = original_rebuild  # type: ignore[attr-defined]
    yield calls
    torch_reductions.reduce_tensor = original_reduce
    torch_reductions.rebuild_cuda_tensor = original_rebuild
    torch_reductions.init_reductions()


def rebuild_and_count(*arguments: Any) -> Any:
    rebuild_and_count.calls["rebuild"] += 1  # type: ignore[attr-defined]
    index = int(arguments[6].removeprefix("index "))
    return rebuild_and_count.original(  # type: ignore[attr-defined]
        *arguments[:6], index, *arguments[7:]
    )


def test_functions_of_a_program_in_torchs_place(patched: dict[str, int]) -> None:
    tensor = sim.full((3,), 1.0)
    got = loads(ForkingPickler.dumps(tensor))
    assert patched == {"reduce": 1, "rebuild": 1}
    assert got.data_ptr() == tensor.data_ptr()
    del got, tensor


SCRIPT = """
import torch
import torch.multiprocessing.reductions as module
from torch.multiprocessing.reductions import reduce_tensor, rebuild_cuda_tensor
{before}
import torch_limbo, sim
tensor = sim.full((3,), 1.0)
function, arguments = reduce_tensor(tensor)
assert len(arguments) == 15 and arguments[4] is torch_limbo.reductions.LimboStorage
assert rebuild_cuda_tensor(*arguments).data_ptr() == tensor.data_ptr()
import pickle
from multiprocessing.reduction import ForkingPickler
data = ForkingPickler.dumps(tensor)
assert pickle.loads(data).data_ptr() == tensor.data_ptr()
assert ForkingPickler.dumps(torch.ones(2)) is not None
"""

OWN_FUNCTION = """
def mine(tensor):
    return reduce_tensor(tensor)
module.reduce_tensor = mine
module.init_reductions()
"""


# Looking for what a program has kept meets every object, also those that cannot be asked.
OWN_FUNCTION_AMONG_DEAD_PROXIES = (
    """
import weakref
class Thing: pass
thing = Thing()
proxy = weakref.proxy(thing)
del thing
"""
    + OWN_FUNCTION
)


@pytest.mark.parametrize(
    "before",
    ["", OWN_FUNCTION, OWN_FUNCTION_AMONG_DEAD_PROXIES],
    ids=["taken", "replaced", "proxies"],
)
def test_functions_taken_before_the_package_was_imported(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_a_program_has_registered_stays_registered() -> None:
    code = """
import pickle
import torch, torch.multiprocessing
from multiprocessing.reduction import ForkingPickler
ForkingPickler.register(torch.nn.Parameter, lambda parameter: (str, ("a program's own way",)))
import torch_limbo, sim
sent = pickle.loads(ForkingPickler.dumps(torch.nn.Parameter(torch.ones(2))))
assert sent == "a program's own way", sent
tensor = sim.full((3,), 1.0)
assert pickle.loads(ForkingPickler.dumps(tensor)).data_ptr() == tensor.data_ptr()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_views_that_conjugate_or_negate() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    tensor = sim.of(values)
    for view in (tensor.conj(), torch._neg_view(tensor)):
        function, arguments = torch_reductions.reduce_tensor(view)
        for size in (2, 1):  # untouched, and with another size written into it
            got = function(arguments[0], torch.Size([size]), *arguments[2:])
            assert (got.is_conj(), got.is_neg()) == (view.is_conj(), view.is_neg())
            assert got.data_ptr() == tensor.data_ptr()
            plain = torch._neg_view(got) if got.is_neg() else got.conj()
            assert torch.equal(sim.read(plain), values[:size])
            del got, plain
        del view
    del tensor


def test_a_process_that_only_unpickles_imports_the_package() -> None:
    code = """
import pickle, sys
import torch
data = sys.stdin.buffer.read()
assert "torch_limbo" not in sys.modules
tensor = pickle.loads(data)
assert "torch_limbo" in sys.modules
assert torch.cuda.get_allocator_backend() == "native"
print(torch.ops.limbo.sim_read(tensor).tolist())
"""
    tensor = sim.full((3,), 2.0)
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=bytes(ForkingPickler.dumps(tensor)),
        capture_output=True,
        timeout=100,
        check=False,
        env=os.environ,
    )
    assert done.stdout.strip() == b"[2.0, 2.0, 2.0]", done.stderr.decode()
    del tensor


def test_the_package_imported_anew() -> None:
    import importlib

    before = torch_reductions.reduce_tensor
    importlib.reload(torch_limbo.reductions)
    assert torch_reductions.reduce_tensor is before
    tensor = sim.full((3,), 1.0)
    assert loads(ForkingPickler.dumps(tensor)).data_ptr() == tensor.data_ptr()
    assert loads(ForkingPickler.dumps(torch.ones(2))).tolist() == [1.0, 1.0]
    del tensor


def test_stock_multiprocessing_leaves_the_sending_to_torch() -> None:
    tensor = sim.full((3,), 1.0)
    sends = torch_limbo.stats()["sends"]
    send_by_descriptor(False)
    try:
        with pytest.raises(RuntimeError) as caught:  # torch's own way needs a driver
            ForkingPickler.dumps(tensor)
        assert not isinstance(caught.value, torch_limbo.LimboError)
    finally:
        send_by_descriptor(True)
    assert torch_limbo.stats()["sends"] == sends
    del tensor


def test_receiving_goes_on_where_sending_is_torchs(shared_peer: Peer) -> None:
    own = sim.full((3,), 1.0)
    data = bytes(ForkingPickler.dumps(own))
    message = shared_peer.call(remote.make, "t", (5,), 4.0)
    send_by_descriptor(False)
    try:
        assert loads(data).data_ptr() == own.data_ptr()
        tensor = torch_limbo.receive(message)
        assert bool((sim.read(tensor) == 4.0).all())
        del tensor
    finally:
        send_by_descriptor(True)
    shared_peer.call(remote.drop, "t")
