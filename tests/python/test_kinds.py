"""Every kind of tensor and storage arrives as what it was.

What torch rebuilds by CUDA kernels (sparse COO, strided nested tensors) is in gpu/scripts/kinds.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def test_memory_of_another_allocator_takes_torchs_own_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Limbo has not allocated is torch's: its reducer is asked, with the tensor as it is."""
    asked: list[torch.Tensor] = []

    def stock(tensor: torch.Tensor) -> Any:
        asked.append(tensor)
        return (str, ("torch's own",))

    monkeypatch.setattr(torch_limbo.reductions, "_stock_reduce_tensor", stock)
    foreign = torch.empty(3, device="meta")
    on_the_cpu = torch.ones(3)
    for tensor in (foreign, on_the_cpu):
        assert torch_limbo.reductions.reduce_tensor(tensor) == (str, ("torch's own",))
    own = sim.full((3,), 1.0)
    function, arguments = torch_limbo.reductions.reduce_tensor(own)
    assert function is not str
    assert [id(tensor) for tensor in asked] == [id(foreign), id(on_the_cpu)]
    torch_limbo.withdraw(arguments[7])
    del own
