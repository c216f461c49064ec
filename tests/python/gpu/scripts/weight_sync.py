"""Weights from a trainer to an engine, bucket by bucket, as RL frameworks do it.

"one": one flat buffer for all buckets; its tuple is sent once a sync, then each bucket's offsets,
and the engine acknowledges before the buffer is written again. "each": a flat buffer of its own for
each bucket, whose tuple goes with it, and which is dropped when the engine has acknowledged.

    weight_sync.py one|each
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.multiprocessing as mp
from common import memory_use, note, report, run, wait_for_empty_limbo
from torch.multiprocessing.reductions import reduce_tensor

SYNCS = 50
BUCKET_BYTES = 32 << 20
LAYERS = 12
ROWS, COLUMNS = 1024, 2048  # 8 MiB a layer in float32

LET_GO = b""  # instead of a tuple: the engine is to drop the buffer

Entry = tuple[str, tuple[int, ...], int, int]  # name, shape, where it begins, elements


def model() -> dict[str, torch.Tensor]:
    weights = {f"layer{n}": torch.empty(ROWS, COLUMNS, device="cuda") for n in range(LAYERS)}
    return weights | {f"bias{n}": torch.empty(1000 + n, device="cuda") for n in range(LAYERS)}


def buckets(weights: dict[str, torch.Tensor]) -> Iterator[list[Entry]]:
    entries: list[Entry] = []
    used = 0
    for name, weight in weights.items():
        if used + weight.numel() > BUCKET_BYTES // 4:
            yield entries
            entries, used = [], 0
        entries.append((name, tuple(weight.shape), used, weight.numel()))
        used += weight.numel()
    yield entries


def consume(pipe: Any, way: str) -> None:
    weights = model()
    bucket = None
    while (message := pipe.recv()) is not None:
        data, entries = message
        if data == LET_GO:
            bucket = None
        elif data is not None:
            function, arguments = pickle.loads(data)
            bucket = function(*arguments)
        for name, shape, begin, count in entries:
            weights[name].copy_(bucket[begin : begin + count].view(shape))
        del message
        bucket = bucket if way == "one" else None  # let go of before the trainer hears of it
        torch.cuda.synchronize()
        pipe.send("ack")
    pipe.send({name: float(weight.double().sum()) for name, weight in weights.items()})


def sync(weights: dict[str, torch.Tensor], pipe: Any, way: str) -> None:
    def acknowledged() -> None:
        if not pipe.poll(60):
            raise TimeoutError("the engine does not answer")
        assert pipe.recv() == "ack"

    buffer = torch.empty(BUCKET_BYTES // 4, device="cuda") if way == "one" else None
    if buffer is not None:
        pipe.send((pickle.dumps(reduce_tensor(buffer)), []))
        acknowledged()
    for entries in buckets(weights):
        flat = torch.empty(BUCKET_BYTES // 4, device="cuda") if buffer is None else buffer
        for name, _, begin, count in entries:
            flat[begin : begin + count].copy_(weights[name].flatten())
        data = pickle.dumps(reduce_tensor(flat)) if buffer is None else None
        if buffer is not None:
            torch.cuda.synchronize()  # nothing is sent that the reader could wait for
        pipe.send((data, entries))
        acknowledged()
        del flat
    if buffer is not None:
        pipe.send((LET_GO, []))
        acknowledged()


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    way = sys.argv[1]
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    engine = context.Process(target=consume, args=(theirs, way))
    engine.start()
    theirs.close()
    weights = model()
    model_bytes = memory_use()["allocated"]
    torch.cuda.reset_peak_memory_stats()
    curve = []
    for number in range(SYNCS):
        for index, weight in enumerate(weights.values()):
            weight.fill_(number + index / 64)
        sync(weights, ours, way)
        torch_limbo.collect()
        curve.append(memory_use())
        if number % 10 == 0:
            note(f"sync {number}", curve[-1])
    peak = torch.cuda.max_memory_allocated()
    wait_for_empty_limbo()
    ours.send(None)
    theirs_sums = ours.recv()
    engine.join(30)
    sums = {name: float(weight.double().sum()) for name, weight in weights.items()}
    report(
        right=sums == theirs_sums,
        model_bytes=model_bytes,
        bucket_bytes=BUCKET_BYTES,
        peak=peak,
        curve=curve,
        reserved_peak=torch.cuda.max_memory_reserved(),
        statistics=torch_limbo.stats(),
        exit=engine.exitcode,
    )
    return 0


if __name__ == "__main__":
    run(main)
