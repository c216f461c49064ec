"""What receiving on another GPU than the owner's costs from Python; several.py runs it.

    link_steps.py stock|limbo [--quick]

This process lends tensors of the first GPU, another one opens them on the second, over the link.
The last line is RESULT and a JSON object: microseconds of single calls on the host. Torch's own way
has no such option; its function that opens memory is told the other GPU's number.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as mp

RESULT = "RESULT "
OWNER, READER = 0, 1
ELEMENTS = 1024  # floats: 4 KiB
BIG_BYTES = 256 * 2**20
PATIENCE_S = 60.0


def opened(way: str, message: Any) -> Any:
    """The tensor, or torch's storage, on the reader's GPU."""
    if way == "limbo":
        import torch_limbo

        return torch_limbo.receive(message, device=READER)
    return torch.UntypedStorage._new_shared_cuda(READER, *message[1:])


def message_of(way: str, tensor: torch.Tensor) -> Any:
    if way == "limbo":
        import torch_limbo

        return torch_limbo.share(tensor)
    return tensor.untyped_storage()._share_cuda_()


def as_tensor(way: str, got: Any) -> torch.Tensor:
    if way == "limbo":
        tensor: torch.Tensor = got
        return tensor
    return torch.empty(0, device=f"cuda:{READER}").set_(got)


def read_for(way: str, connection: Connection) -> None:
    if way == "limbo":
        import torch_limbo

        assert torch_limbo.library_path()
    torch.cuda.set_device(READER)
    torch.ones(1, device=f"cuda:{READER}").sum().item()
    connection.send("ready")
    while True:
        messages = connection.recv()
        if messages is None:
            return
        held, opening, releasing = [], [], []
        for message in messages:
            start = time.perf_counter_ns()
            held.append(opened(way, message))
            opening.append(time.perf_counter_ns() - start)
        tensor = as_tensor(way, held[-1])
        value = float(tensor.flatten()[0])
        rate = copy_rate(tensor)
        del tensor
        torch.cuda.synchronize(READER)
        while held:
            start = time.perf_counter_ns()
            held.pop()
            releasing.append(time.perf_counter_ns() - start)
        torch.cuda.synchronize(READER)
        gc.collect()
        connection.send((opening, releasing, value, rate))


def copy_rate(source: torch.Tensor) -> float:
    """Gigabytes a second of a copy to the reader's own memory; 0 where it is too small for that."""
    size_bytes = source.numel() * source.element_size()
    if size_bytes < BIG_BYTES:
        return 0.0
    here = torch.empty_like(source)
    here.copy_(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    here.copy_(source)
    end.record()
    torch.cuda.synchronize(READER)
    return float(size_bytes / (begin.elapsed_time(end) / 1e3) / 1e9)


def summary(times_ns: list[int]) -> dict[str, float]:
    ordered = sorted(times_ns)
    return {
        "median_us": statistics.median(ordered) / 1e3,
        "p99_us": ordered[(len(ordered) * 99 - 1) // 100] / 1e3,
        "longest_us": ordered[-1] / 1e3,
    }


def measure(way: str, quick: bool) -> dict[str, Any]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    reader = context.Process(target=read_for, args=(way, theirs), daemon=True)
    reader.start()
    theirs.close()

    def ask(messages: list[Any]) -> Any:
        ours.send(messages)
        return answer()

    def answer() -> Any:
        if not ours.poll(PATIENCE_S):
            raise TimeoutError("the reader does not answer")
        return ours.recv()

    assert answer() == "ready"
    if way == "limbo":
        import torch_limbo

        torch_limbo.enable()
    count, rounds = (20, 2) if quick else (300, 6)
    opening: list[int] = []
    releasing: list[int] = []
    first = 0.0
    for number in range(rounds):
        tensors = [
            torch.full((ELEMENTS,), float(number), device=f"cuda:{OWNER}") for _ in range(count)
        ]
        torch.cuda.synchronize(OWNER)
        opens, releases, value, _ = ask([message_of(way, tensor) for tensor in tensors])
        if value != float(number):
            raise RuntimeError(f"{value} was read where {number} was sent")
        if number == 0:
            first = opens[0] / 1e3  # it maps the piece
        else:
            opening += opens
            releasing += releases
        tensors.clear()
        if way == "stock":
            torch.cuda.ipc_collect()
    big = torch.full((BIG_BYTES // 4,), 7.0, device=f"cuda:{OWNER}")
    torch.cuda.synchronize(OWNER)
    _, _, value, rate = ask([message_of(way, big)])
    if value != 7.0:
        raise RuntimeError(f"{value} was read where 7 was sent")
    ours.send(None)
    reader.join(PATIENCE_S)
    return {
        "first_us": first,
        "receive": summary(opening),
        "release": summary(releasing),
        "copy_gb_per_s": rate,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("stock", "limbo"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(RESULT + json.dumps(measure(options.way, options.quick)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
