"""Every kind of tensor and storage arrives as what it was.

What torch rebuilds by CUDA kernels (sparse COO, strided nested tensors) is in gpu/scripts/kinds.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import remote
import remote_kinds
import sim
import torch
import torch_limbo
from peer import Peer

pytestmark = [
    pytest.mark.usefixtures("balanced"),
    pytest.mark.filterwarnings("ignore:.*(Sparse|TypedStorage|prototype).*"),
]


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


def base() -> torch.Tensor:
    return sim.of(torch.arange(24, dtype=torch.float32))


def tagged() -> torch.Tensor:
    made = base().as_subclass(remote_kinds.Tagged)
    made.tag = "seven"
    return made


def module() -> torch.nn.Module:
    made = torch.nn.Linear(3, 2, device="meta")
    made.weight = torch.nn.Parameter(sim.full((2, 3), 1.0))
    made.bias = torch.nn.Parameter(sim.full((2,), 2.0), requires_grad=False)
    return made


def csr() -> torch.Tensor:
    rows, columns = sim.of(torch.tensor([0, 1, 2])), sim.of(torch.tensor([1, 0]))
    values = sim.of(torch.tensor([2.0, 3.0]))
    return torch.sparse_compressed_tensor(
        rows, columns, values, (2, 2), layout=torch.sparse_csr, check_invariants=False
    )


def jagged() -> torch.Tensor:
    offsets = sim.of(torch.tensor([0, 2, 6]))
    return torch.nested.nested_tensor_from_jagged(base().view(6, 4), offsets)


def channels_last() -> torch.Tensor:
    made = sim.empty(0)
    return made.set_(base().untyped_storage(), 0, (1, 2, 3, 4), (24, 1, 8, 2))


KINDS: dict[str, Callable[[], Any]] = {
    "scalar": lambda: base()[7],
    "empty": lambda: sim.empty(0, 3),
    "no elements": lambda: base()[4:4],
    "expanded": lambda: base()[3].expand(2, 3),
    "transposed": lambda: base().view(4, 6).t(),
    "stepped": lambda: base()[1::3],
    "overlapping": lambda: base().as_strided((3, 4), (2, 1)),
    "channels_last": channels_last,
    "as another type": lambda: base().view(torch.int32),
    "leaf": lambda: base().requires_grad_(),
    "detached": lambda: (base().requires_grad_().view(4, 6)).detach(),
    "parameter": lambda: torch.nn.Parameter(base()),
    "frozen parameter": lambda: torch.nn.Parameter(base().view(torch.int32), requires_grad=False),
    "empty parameter": lambda: torch.nn.Parameter(sim.empty(0)),
    "buffer": lambda: torch.nn.Buffer(base()),
    "subclass": tagged,
    "two tensors in one": lambda: remote_kinds.TwoTensors(base(), base()[:4]),
    "module": module,
    "csr": csr,
    "jagged": jagged,
    "untyped storage": lambda: base().untyped_storage(),
    "typed storage": lambda: base()._typed_storage(),
    "old storage class": lambda: torch.cuda.FloatStorage(wrap_storage=base().untyped_storage()),
    "empty storage": lambda: sim.empty(0).untyped_storage(),
    "several": lambda: [base(), sim.full((3,), 1, dtype=torch.int8), torch.ones(2)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_arrives_as_it_was(peer: Peer, kind: str) -> None:
    value = KINDS[kind]()
    peer.call(remote.keep, "t", value)
    assert peer.call(remote_kinds.facts_of, "t") == remote_kinds.facts(value)
    del value
    peer.call(remote.drop, "t")


def test_a_subclass_of_parameter_arrives_as_by_torch(peer: Peer) -> None:
    """torch sends it as a Parameter."""
    peer.call(remote.keep, "t", remote_kinds.Counted(base()))
    assert peer.call(remote.describe, "t")["type"] == "Parameter"
    peer.call(remote.drop, "t")


def test_what_shares_a_storage_shares_it_there(peer: Peer) -> None:
    whole = base()
    peer.call(remote.keep, "all", (whole, whole[4:], whole.view(torch.int32), whole.view(4, 6).t()))
    assert peer.call(remote.storages_of, ["all"]) == 1
    peer.call(remote.keep, "later", (whole[:1],))
    assert peer.call(remote.storages_of, ["all", "later"]) == 1
    del whole
    peer.call(remote.drop_all)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the tensors that torch's own reducer is given; it answers "torch's own"."""
    ids: list[int] = []

    def stock(tensor: torch.Tensor) -> Any:
        ids.append(id(tensor))
        return (str, ("torch's own",))

    monkeypatch.setattr(torch_limbo.reductions, "_stock_reduce_tensor", stock)
    return ids


def test_what_is_on_no_gpu_takes_torchs_own_way(asked: list[int]) -> None:
    others = [torch.ones(3), torch.empty(3, device="meta")]
    for tensor in others:
        assert torch_limbo.reductions.reduce_tensor(tensor) == (str, ("torch's own",))
    assert asked == [id(tensor) for tensor in others]


class _Foreign(ctypes.Structure):
    """DLPack's DLManagedTensor: how others hand their CUDA memory to torch."""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset_bytes", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def over(address: int, elements: int) -> torch.Tensor:
    """A CUDA tensor of 32-bit floats over memory that somebody else has there."""
    shape = (ctypes.c_int64 * 1)(elements)
    made = _Foreign(address, 2, 0, 1, 2, 32, 1, shape, None, 0, None, None)
    _FOREIGN.append((shape, made))
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    tensor: torch.Tensor = torch.from_dlpack(capsule(ctypes.addressof(made), b"dltensor", None))
    return tensor


_FOREIGN: list[Any] = []


def test_cuda_memory_of_others_takes_torchs_own_way(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Limbo has not allocated is torch's: its reducer is asked, with the tensor as it is.
    (gpu/scripts/not_enabled.py is the same for torch's own memory.)"""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    own = sim.full((4,), 1.0)
    host = torch.zeros(4)
    foreign = {
        "no memory of Limbo's": over(host.data_ptr(), 4),
        "free memory in Limbo's segment": over(own.data_ptr() + (1 << 19), 4),
        "a block and what is behind it": over(own.data_ptr(), 1024),
    }
    for what, tensor in foreign.items():
        assert tensor.is_cuda
        assert tensor.numel() in (4, 1024)
        assert torch_limbo.reductions.reduce_tensor(tensor) == (str, ("torch's own",)), what
        with pytest.raises(torch_limbo.LimboError) as caught:
            torch_limbo.share(tensor)
        assert caught.value.code == "not_lendable", what
        assert not torch_limbo.is_orphaned(tensor)
    assert asked == [id(tensor) for tensor in foreign.values()]
    # Whoever stands in between: the memory is Limbo's.
    for tensor in (own, over(own.data_ptr(), 4)):
        function, arguments = torch_limbo.reductions.reduce_tensor(tensor)
        assert function is not str
        torch_limbo.withdraw(arguments[7])
    assert len(asked) == len(foreign)
    foreign.clear()
    del own, tensor


def test_memory_of_others_that_cannot_grow_keeps_its_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch refuses as well, and has changed the shape by then."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    host = torch.zeros(4)
    tensor = over(host.data_ptr(), 4)
    with pytest.raises(RuntimeError, match=r"storage that is not resizable"):
        tensor.resize_(5)
    assert tuple(tensor.shape) == (4,)
    assert tuple(tensor.resize_(2).shape) == (2,)
