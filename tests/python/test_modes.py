"""What is sent and received while the program is in one of torch's modes or transforms.

In FakeTensorMode torch's functions make tensors without memory, and what is sent then is real all
the same: workers pickle, and queues' threads, whatever the main thread is in.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import sim
import torch
import torch_limbo
from torch._functorch.eager_transforms import grad_increment_nesting, jvp_increment_nesting
from torch._functorch.vmap import vmap_increment_nesting
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch_limbo import LimboError

pytestmark = pytest.mark.usefixtures("balanced")


@pytest.fixture(scope="module", autouse=True)
def _names_are_open() -> None:
    """What the first use of names opens and keeps is there before a test compares."""
    registry, tensor = torch_limbo.Registry("modes"), sim.full((1,), 1.0)
    registry.publish("first", tensor)
    registry.unpublish("first")


class SeesDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class SeesFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "fake": FakeTensorMode,
    "fake beside real": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "functional": FunctionalTensorMode,
    "dispatch": SeesDispatch,
    "function": SeesFunctions,
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "on meta": lambda: torch.device("meta"),
    "on cuda": lambda: torch.device("cuda"),
    # What torch.func's transforms are inside of.
    "in grad": grad_increment_nesting,
    "in jvp": jvp_increment_nesting,
    "in vmap": lambda: vmap_increment_nesting(2, "error"),
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> AbstractContextManager[Any]:
    return MODES[request.param]()


class Seen(Exception):  # noqa: N818
    """Ends a transformed function."""


def dumps(value: Any) -> bytes:
    return bytes(ForkingPickler.dumps(value))


def read(tensor: torch.Tensor) -> list[float]:
    assert type(tensor) in (torch.Tensor, torch.nn.Parameter)
    values: list[float] = sim.read(tensor.detach()).tolist()
    return values


def kinds() -> dict[str, torch.Tensor]:
    return {
        "tensor": sim.full((3,), 2.0),
        "leaf": sim.full((3,), 3.0).requires_grad_(),
        "parameter": torch.nn.Parameter(sim.full((3,), 4.0)),
        "empty": sim.full((0,), 0.0),
    }


@pytest.mark.parametrize("kind", ["tensor", "leaf", "parameter", "empty"])
def test_tensors(mode: AbstractContextManager[Any], kind: str) -> None:
    sent = kinds()[kind]
    expected = read(sent)
    opened_within, loaded_within = torch_limbo.share(sent), dumps(sent)
    with mode:
        opened_behind, loaded_behind = torch_limbo.share(sent), dumps(sent)
        got = [torch_limbo.receive(opened_within), pickle.loads(loaded_within)]
    got += [torch_limbo.receive(opened_behind), pickle.loads(loaded_behind)]
    for tensor in got:
        assert type(tensor) is type(sent)
        assert read(tensor) == expected
        assert tensor.requires_grad == sent.requires_grad


def test_storages_and_changed_tuples(mode: AbstractContextManager[Any]) -> None:
    sent = sim.full((4,), 5.0)
    loaded_within = dumps(sent.untyped_storage())
    with mode:
        loaded_behind = dumps(sent.untyped_storage())
        storages = [pickle.loads(loaded_within)]
        rebuild, arguments = torch.multiprocessing.reductions.reduce_tensor(sent)
        half = rebuild(arguments[0], torch.Size([2]), *arguments[2:])
    storages.append(pickle.loads(loaded_behind))
    assert read(half) == [5.0, 5.0]
    for storage in storages:
        assert storage.data_ptr() == sent.data_ptr()
        assert storage.nbytes() == 16


def test_names_and_what_is_taken_back(mode: AbstractContextManager[Any]) -> None:
    sent = sim.full((3,), 6.0)
    registry = torch_limbo.Registry("modes")
    with mode:
        registry.publish("weights", sent)
        acquired = registry.acquire("weights")
        torch_limbo.withdraw(torch_limbo.share(sent))
        with pytest.raises(LimboError, match="bytes") as caught:
            torch_limbo.receive(b"")
        assert not torch_limbo.is_orphaned(sent)
    assert caught.value.code == "bad_descriptor"
    assert read(acquired) == [6.0, 6.0, 6.0]
    registry.release(acquired)
    registry.unpublish("weights")


def test_a_message_without_memory_is_refused() -> None:
    with FakeTensorMode():
        fake = torch.empty(200, dtype=torch.uint8, device="cpu")
        with pytest.raises(RuntimeError, match=r"limbo\[bad_argument\]"):
            torch.ops.limbo.kind(fake)


def vmap_of_grad(body: Callable[..., Any], given: torch.Tensor) -> Any:
    return torch.func.vmap(torch.func.grad(body))(given)


TRANSFORMS: dict[str, Callable[[Callable[..., Any], torch.Tensor], Any]] = {
    "vmap": lambda body, given: torch.func.vmap(body)(given),
    "grad": lambda body, given: torch.func.grad(body)(given),
    "vjp": torch.func.vjp,
    "jvp": lambda body, given: torch.func.jvp(body, (given,), (given,)),
    "functionalize": lambda body, given: torch.func.functionalize(body)(given),
    "vmap of grad": vmap_of_grad,
}


@pytest.fixture(params=TRANSFORMS)
def transformed(request: pytest.FixtureRequest) -> Callable[[Callable[..., Any]], None]:
    """Calls a body inside of a transform, with what that gives to it."""

    def call(body: Callable[[torch.Tensor], None]) -> None:
        def ends(given: torch.Tensor) -> None:
            body(given)
            raise Seen

        with pytest.raises(Seen):
            TRANSFORMS[request.param](ends, sim.full((3,), 1.0))

    return call


def test_what_a_transformed_function_is_given(
    transformed: Callable[[Callable[..., Any]], None],
) -> None:
    """It is refused, and nothing is in flight."""
    in_flight = torch_limbo.stats()["in_flight"]

    def body(given: torch.Tensor) -> None:
        registry = torch_limbo.Registry("modes")
        for call in (
            lambda: torch_limbo.share(given),
            lambda: registry.publish("given", given),
            lambda: registry.release(given),
            lambda: torch_limbo.is_orphaned(given),
        ):
            with pytest.raises(LimboError, match="outside of the transform") as caught:
                call()
            assert caught.value.code == "bad_argument"
        assert torch_limbo.stats()["in_flight"] == in_flight

    transformed(body)


def test_what_else_a_transformed_function_sees(
    transformed: Callable[[Callable[..., Any]], None],
) -> None:
    other, storage = sim.full((3,), 7.0), sim.full((3,), 8.0).untyped_storage()
    leaf = sim.full((3,), 9.0).requires_grad_()
    sent_before, loaded_before = torch_limbo.share(other), dumps([other, leaf, storage])
    got: list[torch.Tensor] = []
    messages: list[bytes] = []
    pickles: list[bytes] = []

    registry = torch_limbo.Registry("modes")

    def body(_: torch.Tensor) -> None:
        registry.publish("other", other)
        acquired = registry.acquire("other")
        assert acquired.data_ptr() == other.data_ptr()
        registry.release(acquired)
        assert registry.unpublish("other")
        assert torch.ops.limbo.is_limbo(other)
        assert not torch_limbo.is_orphaned(other)
        messages.append(torch_limbo.share(other))
        pickles.append(dumps([other, leaf, storage]))
        got.append(torch_limbo.receive(sent_before))
        assert not torch_limbo.is_orphaned(got[0])
        assert torch.ops.limbo.is_received(got[0])
        got.extend(pickle.loads(loaded_before))

    transformed(body)
    got += [torch_limbo.receive(messages[0]), *pickle.loads(pickles[0])]
    for i, expected in enumerate((7.0, 7.0, 9.0, None) * 2):
        if expected is None:
            assert got[i].data_ptr() == storage.data_ptr()
        else:
            assert read(got[i]) == [expected] * 3
            assert got[i].requires_grad == (expected == 9.0)
