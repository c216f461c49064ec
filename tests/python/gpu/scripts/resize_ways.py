"""Every way that changes the size of a tensor or a storage, on received memory and on own memory.

Of received memory: what does not fit is refused with nothing changed, what fits works and gives
torch's values. Of own memory: the same as under torch alone, before torch_limbo is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp
from common import report, run, wait_for_empty_limbo

warnings.filterwarnings("ignore", message=".*resized.*")

ELEMENTS = 1024
SIZES = {"larger": 4096, "same": ELEMENTS, "smaller": 100, "zero": 0}
Change = Callable[[torch.Tensor], object]


def ways(size: int) -> dict[str, Change]:
    """Each leaves a float tensor of `size` elements, by another way."""
    like = torch.ones(size, device="cuda")
    flags = like > 0
    longs = like.long()
    grid = torch.ones(size, 3, device="cuda")
    return {
        "resize_": lambda t: t.resize_(size),
        "resize_ 4d": lambda t: t.resize_((1, 1, 1, size), memory_format=torch.channels_last),
        "resize_as_": lambda t: t.resize_as_(like),
        "set_ storage": lambda t: t.set_(t.untyped_storage(), 0, (size,), (1,)),
        "set_ view": lambda t: t.set_(t.untyped_storage(), 0, (1, size), (size, 1)),
        "add": lambda t: torch.add(like, 1, out=t),
        "mul": lambda t: torch.mul(like, like, out=t),
        "mv": lambda t: torch.mv(grid, torch.ones(3, device="cuda"), out=t),
        "sum": lambda t: torch.sum(grid, 1, out=t),
        "cat": lambda t: torch.cat([like[: size // 2], like[size // 2 :]], out=t),
        "stack": lambda t: torch.stack([like], out=t),
        "cumsum": lambda t: torch.cumsum(like, 0, out=t),
        "softmax": lambda t: torch.softmax(like, 0, out=t),
        "where": lambda t: torch.where(flags, like, like, out=t),
        "index_select": lambda t: torch.index_select(like, 0, longs * 0, out=t),
        "gather": lambda t: torch.gather(like, 0, longs * 0, out=t),
        "masked_select": lambda t: torch.masked_select(like, flags, out=t),
        "arange": lambda t: torch.arange(size, device="cuda", out=t),
        "linspace": lambda t: torch.linspace(0, 1, size, device="cuda", out=t),
        "zeros": lambda t: torch.zeros(size, device="cuda", out=t),
        "full": lambda t: torch.full((size,), 2.0, out=t),
        "empty": lambda t: torch.empty(size, out=t),
        "sort": lambda t: torch.sort(like, out=(t, torch.empty(0, dtype=torch.long).cuda())),
    }


def storage_ways() -> dict[str, Change]:
    bytes_ = 4 * ELEMENTS
    return {
        "storage larger": lambda t: t.untyped_storage().resize_(4 * bytes_),
        "storage smaller": lambda t: t.untyped_storage().resize_(bytes_ // 2),
        "storage zero": lambda t: t.untyped_storage().resize_(0),
        "typed storage": lambda t: t._typed_storage()._resize_(4 * ELEMENTS),
        "inductor": lambda t: torch.ops.inductor.resize_storage_bytes_(t, 4 * bytes_),
        "negative": lambda t: t.resize_(-1),
        "overflow": lambda t: t.resize_(2**62),
        "set_ offset": lambda t: t.set_(t.untyped_storage(), 1, (ELEMENTS,), (1,)),
        "set_ stride": lambda t: t.set_(t.untyped_storage(), 0, (ELEMENTS,), (2,)),
        "set_ backwards": lambda t: t.set_(t.untyped_storage(), 0, (ELEMENTS,), (-1,)),
    }


def everything() -> dict[str, Change]:
    return {
        f"{name} {what}": change
        for what, size in SIZES.items()
        for name, change in ways(size).items()
    } | storage_ways()


def looks(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def outcome(tensor: torch.Tensor, change: Change) -> tuple[str, Any]:
    """("done", how it looks) or ("refused", the error)."""
    try:
        change(tensor)
    except (RuntimeError, AttributeError) as error:
        return "refused", str(error).splitlines()[0]
    torch.cuda.synchronize()
    return "done", (looks(tensor), tensor.untyped_storage().nbytes())


def own_memory() -> dict[str, tuple[str, Any]]:
    """What the ways do to tensors that were not received, whole ones and views."""
    result = {}
    for name, change in everything().items():
        for part in (False, True):
            whole = torch.zeros(ELEMENTS, device="cuda")
            result[f"{name}, {part}"] = outcome(whole[512:] if part else whole, change)
    return result


def received_memory(message: bytes) -> dict[str, str]:
    """What was wrong, by way."""
    import torch_limbo

    expected = torch.arange(ELEMENTS, dtype=torch.float32)
    wrong = {}
    for name, change in everything().items():
        for offset in (0, 512):
            where = f"{name} at {offset}"
            base = torch_limbo.receive(message)
            base.copy_(expected)
            storage = base.untyped_storage()
            tensor = base[offset:]
            before = (looks(tensor), storage.nbytes(), storage.data_ptr())
            kind, what = outcome(tensor, change)
            after = (looks(tensor), storage.nbytes(), storage.data_ptr())
            kept = torch.equal(base.cpu(), expected)
            if tensor.untyped_storage().data_ptr() != storage.data_ptr():
                wrong[where] = "it has another storage"
            if kind == "refused" and (after != before or not kept):
                wrong[where] = f"changed: {before} {after}, values kept: {kept}"
            if kind == "done" and reach(tensor) > storage.nbytes():
                wrong[where] = f"it reaches past its storage: {after}"
            own = torch.zeros(ELEMENTS, device="cuda")[offset:]
            own_kind, own_what = outcome(own, change)
            fits = own_kind == "done" and own_what[1] <= 4 * ELEMENTS
            storage_itself = "storage" in name.split()[0] or name in ("typed storage", "inductor")
            if storage_itself and kind != "refused":
                wrong[where] = f"a received storage was resized: {what}"
            if not storage_itself and fits != (kind == "done"):
                wrong[where] = f"{kind}, {what}; own memory: {own_kind}, {own_what}"
            if not storage_itself and kind == "done" and what[0] != own_what[0]:
                wrong[where] = f"{what}, and own memory {own_what}"
            if kind == "refused" and own_kind == "done" and not_said(what, name):
                wrong[where] = f"the error does not say what to do: {what}"
            del base, storage, tensor, own
    return wrong


def not_said(text: str, name: str) -> bool:
    by_torch = "storage" in name or name == "inductor"
    return "not resizable" not in text or not (by_torch or "clone()" in text)


def reach(tensor: torch.Tensor) -> int:
    """The bytes of its storage that a tensor reaches."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + last + 1) * tensor.itemsize


def consume(pipe: Any) -> None:
    alone = own_memory()
    message = pipe.recv()
    wrong = received_memory(message)
    beside = own_memory()  # with Limbo's checks in place, under torch's allocator
    differences = {key: (alone[key], beside[key]) for key in alone if alone[key] != beside[key]}
    pipe.send((wrong, differences, alone))


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(theirs,))
    consumer.start()
    theirs.close()
    tensor = torch.zeros(ELEMENTS, device="cuda")
    beside = torch.full((64 * ELEMENTS,), 7.0, device="cuda")  # nobody may write here
    here = own_memory()  # under Limbo
    ours.send(torch_limbo.share(tensor))
    if not ours.poll(90):
        raise TimeoutError("the consumer does not answer")
    wrong, differences, alone = ours.recv()
    consumer.join(30)
    under_limbo = {key: (alone[key], here[key]) for key in alone if alone[key] != here[key]}
    intact = bool((beside == 7.0).all())
    del tensor
    wait_for_empty_limbo()
    report(
        wrong=wrong,
        own_memory_beside=differences,
        own_memory_under_limbo=under_limbo,
        tried=len(alone),
        refused=sum(kind == "refused" for kind, _ in alone.values()),
        intact=intact,
        exit=consumer.exitcode,
    )
    return 0


if __name__ == "__main__":
    run(main)
