"""Reduced tensors taken apart on a GPU: index 6 rewritten, gathered, opened by eight processes."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing as mp
import torch.multiprocessing.reductions as reductions
from common import memory_use, report, run, wait_for_empty_limbo

READERS = 8
WAIT_S = 90.0

original_reduce = reductions.reduce_tensor
original_rebuild = reductions.rebuild_cuda_tensor


def uuid_of(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def reduce_by_uuid(tensor: torch.Tensor) -> Any:
    """What a framework puts in torch's place: the device at index 6 becomes its UUID."""
    function, arguments = original_reduce(tensor)
    if len(arguments) == 15:
        arguments = (*arguments[:6], uuid_of(int(arguments[6])), *arguments[7:])
    return function, arguments


def rebuild_by_uuid(*arguments: Any) -> torch.Tensor:
    here = {uuid_of(index): index for index in range(torch.cuda.device_count())}
    return original_rebuild(*arguments[:6], here[arguments[6]], *arguments[7:])  # type: ignore


def answer(work: Any, pipe: Any) -> None:
    try:
        pipe.send(work())
    except Exception as error:
        pipe.send(f"failed: {error!r}")


def read(rank: int, pipe: Any) -> None:
    """A reader, which has a tensor of its own to give."""
    import torch_limbo

    torch_limbo.enable()
    own = torch.full((100,), float(rank), device="cuda")
    pipe.send(pickle.dumps(original_reduce(own)[1]))
    kept: list[torch.Tensor] = []

    def open_all() -> list[float]:
        for data in pipe.recv():
            kept.append(original_rebuild(*pickle.loads(data)))
        return [float(tensor.sum()) for tensor in kept]

    answer(open_all, pipe)
    # Bytes of ForkingPickler: rebuild_by_uuid is this module's.
    answer(lambda: float(pickle.loads(pipe.recv()).sum()), pipe)
    pipe.recv()
    kept.clear()
    torch.cuda.synchronize()
    del own
    pipe.send("done")


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    pipes, readers = [], []
    for rank in range(READERS):
        ours, theirs = context.Pipe()
        readers.append(context.Process(target=read, args=(rank, theirs)))
        readers[-1].start()
        theirs.close()
        pipes.append(ours)

    def hear(pipe: Any) -> Any:
        if not pipe.poll(WAIT_S):
            raise TimeoutError("a reader does not answer")
        return pipe.recv()

    warm = torch.ones(1, device="cuda")
    before = memory_use()
    tensor = torch.full((100,), 50.0, device="cuda")
    _, arguments = reductions.reduce_tensor(tensor)
    variants = {
        "as sent": arguments,
        "by index": (*arguments[:6], 0, *arguments[7:]),
        "by device": (*arguments[:6], torch.device("cuda", 0), *arguments[7:]),
        "by uuid": (*arguments[:6], uuid_of(0), *arguments[7:]),
        "by GPU-uuid": (*arguments[:6], "GPU-" + uuid_of(0).removeprefix("GPU-"), *arguments[7:]),
    }
    tuples = [pickle.dumps(variant) for variant in variants.values()]
    tuples += [hear(pipe) for pipe in pipes]
    for pipe in pipes:
        pipe.send(tuples)
    opened = [hear(pipe) for pipe in pipes]

    reductions.reduce_tensor = reduce_by_uuid
    reductions.rebuild_cuda_tensor = rebuild_by_uuid
    reductions.init_reductions()
    data = bytes(ForkingPickler.dumps(tensor))
    reductions.reduce_tensor = original_reduce
    reductions.rebuild_cuda_tensor = original_rebuild
    reductions.init_reductions()
    for pipe in pipes:
        pipe.send(data)
    patched = [hear(pipe) for pipe in pipes]

    stranger = "GPU-11111111-2222-3333-4444-555555555555"
    try:
        original_rebuild(*arguments[:6], stranger, *arguments[7:])
        code = ""
    except torch_limbo.LimboError as error:
        code = error.code
    never = [pickle.dumps(original_reduce(tensor)) for _ in range(100)]
    del tensor
    torch_limbo.collect()
    in_limbo = torch_limbo.stats()["limbo_blocks"]
    for data in never:
        torch_limbo.withdraw(pickle.loads(data)[1][7])
    for pipe in pipes:
        pipe.send("end")
    ended = [hear(pipe) for pipe in pipes]
    wait_for_empty_limbo()
    after = memory_use()
    for reader in readers:
        reader.join(WAIT_S)
    del warm
    report(
        expected=[5000.0] * len(variants) + [100.0 * rank for rank in range(READERS)],
        opened=opened,
        patched=patched,
        stranger=code,
        in_limbo=in_limbo,
        ended=ended,
        before=before,
        after=after,
        exits=[reader.exitcode for reader in readers],
    )
    return 0


if __name__ == "__main__":
    run(main)
