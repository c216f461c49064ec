"""What tests let another process do (peer.py). Module state lives in that process."""

from __future__ import annotations

import gc
import os
import pickle
import signal
from typing import Any

import sim
import torch
import torch_limbo
from balance import Balance, wait_until

_balance: Balance | None = None

#: What this process holds, by the name that the test gave it.
HELD: dict[str, Any] = {}

_CUDA = 1  # c10::DeviceType::CUDA


def receive(name: str, message: bytes) -> torch.Tensor:
    """Open a message, keep the tensor under `name`, answer with its values."""
    HELD[name] = torch_limbo.receive(message)
    return sim.read(HELD[name])


def receive_unread(name: str, message: bytes) -> None:
    """Open a message and wait for nothing that it comes behind."""
    HELD[name] = torch_limbo.receive(message)


def loaded_values(data: bytes) -> list[Any]:
    """The values of a pickled list's tensors; what else is in it, as it is not."""
    loaded = pickle.loads(data)
    return [sim.read(one) if isinstance(one, torch.Tensor) else None for one in loaded]


def is_orphaned(name: str) -> bool:
    return bool(torch.ops.limbo.is_orphaned(HELD[name]))


def write_late_and_send_on(name: str, value: float) -> bytes:
    """Write what is held, behind work that takes its time, and share it behind that."""
    busy = sim.empty(32 * 1024 * 1024)
    for number in range(20):
        sim.fill(busy, number)
    sim.fill(HELD[name], value)
    return torch_limbo.share(HELD[name])


def send_on(name: str) -> bytes:
    """Share what is held; the answer is the message."""
    return torch_limbo.share(HELD[name])


def send_on_half(name: str) -> bytes:
    """The same, of a view of its second half."""
    half = HELD[name].numel() // 2
    return torch_limbo.share(HELD[name][half:])


def code_of_sending_on(name: str) -> tuple[str, str]:
    """The code and the text of the error that share raises; ("none", "") for none."""
    try:
        torch_limbo.share(HELD[name])
    except torch_limbo.LimboError as error:
        return error.code, str(error)
    return "none", ""


def keep(name: str, value: Any) -> None:
    """Keep what came through the pipe."""
    HELD[name] = value


def values(name: str) -> torch.Tensor:
    return sim.read(HELD[name])


def nested_values(name: str) -> torch.Tensor:
    return sim.read(HELD[name]["nested"][0])


def fill(name: str, value: float) -> None:
    sim.fill(HELD[name], value)


def drop(*names: str) -> None:
    for name in names:
        del HELD[name]
    gc.collect()


def drop_all() -> None:
    HELD.clear()
    gc.collect()


def take_balance() -> None:
    """What this process has now is what `check_balance` will ask for."""
    global _balance
    _balance = Balance()


def check_balance() -> None:
    assert not HELD, f"the test has left {list(HELD)} here"
    assert _balance is not None
    _balance.check()


def stats() -> dict[str, Any]:
    return torch_limbo.stats()


def code_of_receiving(message: bytes) -> str:
    """The code of the error that opening the message gives; "" if it opens."""
    try:
        torch_limbo.receive(message)
    except torch_limbo.LimboError as error:
        return error.code
    return ""


def describe(name: str) -> dict[str, Any]:
    """All that a tensor is besides its values."""
    tensor = HELD[name]
    return {
        "type": type(tensor).__name__,
        "shape": tuple(tensor.shape),
        "stride": tensor.stride(),
        "offset": tensor.storage_offset(),
        "dtype": str(tensor.dtype),
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "device": str(tensor.device),
        "storage_bytes": tensor.untyped_storage().nbytes(),
    }


def same_storage(one: str, other: str) -> bool:
    first, second = HELD[one].untyped_storage(), HELD[other].untyped_storage()
    return bool(first._cdata == second._cdata)


def make(name: str, shape: tuple[int, ...], value: float) -> bytes:
    """Make a tensor here, keep it, and share it: this process is the producer."""
    HELD[name] = sim.full(shape, value)
    return torch_limbo.share(HELD[name])


def send_through(queue: Any, count: int) -> None:
    """Put `count` tensors on a queue and forget them."""
    for number in range(count):
        queue.put((number, sim.full((1 + number % 700,), number)))


def check_from(queue: Any, count: int) -> list[str]:
    """Take `count` tensors from a queue and check them; what was wrong."""
    wrong = []
    for expected in range(count):
        number, tensor = queue.get(timeout=60)
        read = sim.read(tensor)
        right = number == expected and read.numel() == 1 + number % 700
        if not right or not bool((read == number).all()):
            wrong.append(f"{expected}: got {number}, {tuple(read.shape)}, {read.flatten()[:3]}")
        del tensor
    return wrong


def read_all(messages: list[bytes]) -> list[float]:
    """The first value of each message's tensor; nothing is kept."""
    return [float(sim.read(torch_limbo.receive(message))[0]) for message in messages]


def uses() -> tuple[int, int]:
    """File descriptors, and resident KiB, of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        lines = [line.split() for line in status]
    resident = sum(int(words[1]) for words in lines if words[0] in ("RssAnon:", "RssShmem:"))
    return len(os.listdir("/proc/self/fd")), resident


def fork_idle_child() -> int:
    """A fork child that does nothing; its pid."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child


def leave_at_once(count: int) -> None:
    assert len(HELD) == count
    os._exit(0)


def refused_resizes(name: str, sizes: list[int]) -> dict[str, str]:
    """Try each way to grow a tensor; the outcome of each, and whether anything changed."""
    tensor = HELD[name]
    storage = tensor.untyped_storage()

    def state() -> tuple[Any, ...]:
        return tuple(tensor.shape), storage.nbytes(), storage.data_ptr(), sim.read(tensor).tolist()

    view = tensor[1:]
    attempts: dict[str, Any] = {
        "larger": lambda: tensor.resize_(tensor.numel() * 64),
        "view": lambda: view.resize_(tensor.numel() * 64),
        "set": lambda: tensor.set_(storage, 0, (tensor.numel() * 64,), (1,)),
    }
    for size in sizes:
        attempts[f"storage {size}"] = lambda size=size: storage.resize_(size)
    outcome = {}
    for what, attempt in attempts.items():
        before = state()
        try:
            attempt()
        except RuntimeError as error:
            same = state() == before and tuple(view.shape) == (tensor.numel() - 1,)
            outcome[what] = f"refused: {error}" if same else f"changed: {before} to {state()}"
        else:
            outcome[what] = "accepted"
    return outcome


def resize(name: str, size: int) -> torch.Tensor:
    HELD[name].resize_(size)
    return sim.read(HELD[name])


def storage_facts(name: str) -> tuple[str, int, bool]:
    """A storage's type and bytes, and whether it is the one that the tensor "tensor" has."""
    storage = HELD[name]
    untyped = storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
    same = untyped._cdata == HELD["tensor"].untyped_storage()._cdata
    return type(storage).__name__, untyped.nbytes(), bool(same)


def use_on_side_streams(name: str, count: int) -> None:
    """Use a tensor on `count` streams besides the one that received it."""
    for _ in range(count):
        handle = torch.ops.limbo.sim_new_stream(0)
        before = torch.ops.limbo.sim_set_stream(handle, 0)
        sim.fill(HELD[name], 5.0)
        torch.ops.limbo.sim_set_stream(before, 0)
        HELD[name].record_stream(torch.Stream(stream_id=handle, device_index=0, device_type=_CUDA))


def ends(name: str) -> list[float]:
    """The first and the last value."""
    read = sim.read(HELD[name]).flatten()
    return [float(read[0]), float(read[-1])]


def storages_of(names: list[str]) -> int:
    """How many storages the tensors under these names have among them."""
    return len({tensor.untyped_storage()._cdata for name in names for tensor in HELD[name]})


def first_values(names: list[str]) -> list[float]:
    return [float(sim.read(HELD[name]).flatten()[0]) for name in names]


def limit_messages_to(milliseconds: int) -> None:
    """What nobody opens is over so long after the later of its send and its owner's free."""
    torch_limbo.enable(message_time_limit_ms=milliseconds)


def left_to_drain(limit_ms: int) -> int:
    """What multiprocessing runs at the end of a process, with `limit_ms` to wait; what is left of
    them for the interpreter's own end."""
    torch_limbo.enable(exit_drain_ms=limit_ms)
    torch_limbo.api._exit_drain._drain()
    (left,) = [option.value for option in torch_limbo.options() if option.name == "exit_drain_ms"]
    return left


def wait_until_all_is_over() -> None:
    wait_until(lambda: torch_limbo.stats()["exports_open"] == 0, "messages are not over")
    wait_until(lambda: torch_limbo.stats()["limbo_blocks"] == 0, "blocks are still in limbo")
