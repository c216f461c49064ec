"""Every kind of tensor and storage through a queue: what arrives is what was sent."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.multiprocessing as mp
from common import memory_use, note, report, run, wait_for_empty_limbo

warnings.filterwarnings("ignore", message=".*(Sparse|prototype|TypedStorage|legacy).*")


class Tagged(torch.Tensor):
    """A subclass with an attribute."""

    tag: str = ""


class Counted(torch.nn.Parameter):
    """A subclass of Parameter; torch sends it as a Parameter."""


def jagged(base: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([base[:2].clone(), base[:5].clone()], layout=torch.jagged)


def tagged(base: torch.Tensor) -> torch.Tensor:
    made = base.clone().as_subclass(Tagged)
    made.tag = "seven"
    return made


def samples() -> dict[str, Any]:
    base = torch.arange(24, device="cuda", dtype=torch.float32)
    square = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device="cuda")
    image = base.view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    complex_ = torch.complex(base, -base)
    return {
        "plain": base,
        "scalar": base[7],
        "empty": torch.empty(0, 3, device="cuda"),
        "no elements": base[4:4],
        "expanded": base[3].expand(2, 3),
        "transposed": base.view(4, 6).t(),
        "stepped": base[1::3],
        "overlapping": base.as_strided((3, 4), (2, 1)),
        "channels_last": image,
        "complex": complex_,
        "conjugated": complex_.conj(),
        "imaginary": complex_.conj().imag,  # negated
        "bool": base > 3,
        "float8": base.to(torch.float8_e4m3fn),
        "bfloat16": base.bfloat16(),
        "viewed": base.view(torch.int32),
        "leaf": base.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(base.clone()),
        "frozen": torch.nn.Parameter(base.long(), requires_grad=False),
        "buffer": torch.nn.Buffer(base.clone()),
        "parameter's subclass": Counted(base.clone()),
        "subclass": tagged(base),
        "module": torch.nn.Linear(3, 2).cuda(),
        "coo": square.to_sparse(),
        "coo uncoalesced": torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), device="cuda"),
        "csr": square.to_sparse_csr(),
        "csc": square.to_sparse_csc(),
        "bsr": square.to_sparse_bsr((1, 1)),
        "nested": torch.nested.nested_tensor([base[:2].clone(), base[:5].clone()]),
        "jagged": jagged(base),
        "untyped storage": base.untyped_storage(),
        "typed storage": base.clone()._typed_storage(),
        "empty storage": torch.empty(0, device="cuda").untyped_storage(),
        "one storage twice": (base[:4], base[2:].view(torch.int32)),
    }


def facts(value: Any) -> Any:
    if isinstance(value, tuple):
        one = len({tensor.untyped_storage()._cdata for tensor in value})
        return (one, *[facts(tensor) for tensor in value])
    if isinstance(value, torch.nn.Module):
        return {name: facts(parameter) for name, parameter in value.named_parameters()}
    if isinstance(value, torch.UntypedStorage):
        return (str(value.device), value.tolist())
    if isinstance(value, torch.TypedStorage):
        return (str(value.dtype), value.tolist())
    if value.is_nested:
        return ("nested", [facts(part) for part in value.unbind()])
    if value.layout is not torch.strided:
        coalesced = value.is_coalesced() if value.layout is torch.sparse_coo else None
        return (str(value.layout), coalesced, value.to_dense().cpu().tolist())
    dense = value.detach().as_subclass(torch.Tensor)
    if value.dtype is torch.float8_e4m3fn:
        dense = dense.float()
    return (
        type(value).__name__,
        getattr(value, "tag", None),
        str(value.dtype),
        tuple(value.shape),
        value.stride(),
        value.storage_offset(),
        (value.is_conj(), value.is_neg()),
        value.requires_grad,
        value.is_leaf,
        repr(dense.cpu().tolist()),
    )


def expected(name: str, value: Any) -> Any:
    """What arrives: as torch's own way has it, a copied nested tensor begins its memory anew."""
    if name == "parameter's subclass":
        return ("Parameter", *facts(value)[1:])
    return facts(value)


def without_offsets(seen: Any) -> Any:
    """Of the parts of a nested tensor, without where in memory they lie."""
    if not isinstance(seen, tuple) or seen[0] != "nested":
        return seen
    return [(part[:5], part[6:]) for part in seen[1]]


def consume(queue: Any, pipe: Any) -> None:
    pipe.send("ready")
    while True:
        item = value = None
        try:
            item = queue.get()
            if item is None:
                break
            name, value = item
            pipe.send((name, facts(value)))
        except Exception as error:
            pipe.send(("", repr(error)))
    import torch_limbo

    pipe.send(torch_limbo.stats()["receives"])


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    queue = context.Queue()
    ours, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(queue, theirs))
    consumer.start()
    theirs.close()
    assert ours.recv() == "ready"
    failures = []

    def answer_about(name: str) -> Any:
        """What cannot be pickled is told by the queue's thread, on standard error, and never comes;
        what comes late is another's."""
        while ours.poll(20):
            got_name, got = ours.recv()
            if got_name == "":
                raise RuntimeError(got)
            if got_name == name:
                return got
        raise TimeoutError("nothing came")

    def one_round() -> None:
        for name, value in samples().items():
            try:
                queue.put((name, value))
                got = answer_about(name)
                if without_offsets(got) != without_offsets(expected(name, value)):
                    failures.append(f"{name}: sent {expected(name, value)}, got {got}")
            except Exception as error:
                failures.append(f"{name}: {error!r}")
                if not consumer.is_alive():
                    raise

    one_round()
    for failure in failures:
        note(failure)
    wait_for_empty_limbo()
    before = memory_use()
    failures.clear()
    one_round()
    wait_for_empty_limbo()
    after = memory_use()
    queue.put(None)
    receives = ours.recv()
    consumer.join(30)
    report(failures=failures, before=before, after=after, receives=receives, exit=consumer.exitcode)
    return 0


if __name__ == "__main__":
    run(main)
