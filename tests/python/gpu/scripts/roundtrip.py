"""Two Limbo processes: shapes, Parameters, storages, torch's own rebuild, one process alone."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing as mp
from common import memory_use, report, run, wait_for_empty_limbo


def samples() -> dict[str, torch.Tensor]:
    base = torch.arange(24, device="cuda", dtype=torch.float32)
    return {
        "plain": base,
        "transposed": base.view(4, 6).t(),
        "offset": base[5:],
        "expanded": base[3].expand(2, 3),
        "scalar": base[7],
        "no elements": base[4:4],
        "empty": torch.empty(0, 3, device="cuda"),
        "half": base.half(),
        "parameter": torch.nn.Parameter(base.clone()),
        "frozen": torch.nn.Parameter(base.long(), requires_grad=False),
        "sparse": torch.eye(4, device="cuda").to_sparse(),
    }


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.is_sparse:
        return ("sparse", tensor.coalesce().to_dense().cpu().tolist())
    return (
        type(tensor).__name__,
        str(tensor.dtype),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.requires_grad,
        tensor.detach().cpu().tolist(),
    )


def consume(queue: Any, pipe: Any) -> None:
    import torch_limbo

    torch_limbo.enable()
    while True:
        item = queue.get()
        if item is None:
            break
        name, tensor = item
        if name == "by torch":
            # torch's own function, with Limbo's storage class at index 4.
            arguments = tensor
            tensor = torch_limbo.reductions._stock_rebuild_cuda_tensor(*arguments)
            del arguments
        shared = tensor.is_sparse or bool(tensor.is_shared())
        pipe.send((name, facts(tensor), shared))
        del item, tensor
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
    failures = []

    def one_round() -> None:
        for name, tensor in samples().items():
            queue.put((name, tensor))
            if not ours.poll(60):
                raise TimeoutError(name)
            got_name, got, shared = ours.recv()
            if (got_name, got) != (name, facts(tensor)) or not shared:
                failures.append(f"{name}: sent {facts(tensor)}, got {got_name} {got} {shared}")
        tensor = torch.full((5,), 2.0, device="cuda")
        _, arguments = torch.multiprocessing.reductions.reduce_tensor(tensor)
        queue.put(("by torch", arguments))
        if not ours.poll(60):
            raise TimeoutError("by torch")
        _, got, _ = ours.recv()
        if got != facts(tensor):
            failures.append(f"by torch: {got}")

    side = torch.cuda.Stream()  # one for both rounds: each stream has segments of its own

    def alone() -> None:
        import pickle

        tensor = torch.full((5,), 2.0, device="cuda")
        opens = torch_limbo.stats()["opens"]
        got = pickle.loads(ForkingPickler.dumps(tensor))
        if got.data_ptr() != tensor.data_ptr():
            failures.append("in one process: another address")
        if torch_limbo.stats()["opens"] != opens:
            failures.append("in one process: the driver was asked to open")
        # On another stream the reader waits for what its sender had queued.
        torch.cuda._sleep(200_000_000)
        tensor.fill_(3.0)
        message = torch_limbo.share(tensor)
        with torch.cuda.stream(side):
            there = torch_limbo.receive(message)
            copy = there.clone()
        side.synchronize()
        if copy.tolist() != [3.0] * 5:
            failures.append(f"in one process, another stream: {copy.tolist()}")

    def made_at(address: int, size: int, value: float, dtype: torch.dtype) -> torch.Tensor:
        others = []  # kept, so that the allocator goes on to other blocks
        for _ in range(10_000):
            tensor = torch.full((size,), value, dtype=dtype, device="cuda")
            if address in (0, tensor.data_ptr()):
                return tensor
            others.append(tensor)
        raise AssertionError(f"no allocation came to lie at {address:#x}")

    def one_address_in_two_shapes() -> None:
        shapes = ((torch.float32, 3, 1.25), (torch.int8, 4, 7))
        for order in (shapes, shapes[::-1]):
            address = 0
            for dtype, size, value in order:
                tensor = made_at(address, size, value, dtype)
                address = tensor.data_ptr()
                queue.put(("again", tensor))
                if not ours.poll(60):
                    raise TimeoutError("again")
                _, got, _ = ours.recv()
                if got != facts(tensor):
                    failures.append(f"at one address: sent {facts(tensor)}, got {got}")
                del tensor
                wait_for_empty_limbo()

    one_round()
    alone()
    one_address_in_two_shapes()
    wait_for_empty_limbo()
    before = memory_use()
    one_round()
    alone()
    one_address_in_two_shapes()
    wait_for_empty_limbo()
    after = memory_use()
    queue.put(None)
    receives = ours.recv()
    if receives < 20:
        failures.append(f"only {receives} messages went by descriptor")
    for wrong in (torch.ones(3), torch.ones(3, device="cuda", requires_grad=True) * 2):
        try:
            torch_limbo.share(wrong)
        except torch_limbo.LimboError:
            continue
        failures.append(f"shared {wrong}")
    consumer.join(30)
    report(failures=failures, before=before, after=after, exit=consumer.exitcode)
    return 0


if __name__ == "__main__":
    run(main)
