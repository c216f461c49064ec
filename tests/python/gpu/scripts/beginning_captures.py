"""Captures that begin while another thread releases what their stream received: none is lost.

beginning_captures.py native | limbo [silent]: the consumer's allocator; `silent`: nobody announces.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
import torch.multiprocessing as mp
from common import report, run, wait_for_empty_limbo

ELEMENTS = 1024
TENSORS = 3000


def capture(graph: Any, stream: Any, result: Any, silent: bool) -> bool:
    """Whether the capture ended well."""
    begin = torch.cuda.CUDAGraph.capture_begin
    if silent:
        begin = begin.__wrapped__  # type: ignore[attr-defined]
    with torch.cuda.stream(stream):
        begin(graph, capture_error_mode="relaxed")
        try:
            result.add_(1)
        finally:
            try:
                graph.capture_end()
            except RuntimeError as lost:
                print(lost, file=sys.stderr)
                return False
    return True


def consume(queue: Any, pipe: Any, way: str, silent: bool) -> None:
    if way == "limbo":
        import torch_limbo

        torch_limbo.enable()
    stream = torch.cuda.Stream()
    result = torch.zeros(ELEMENTS, dtype=torch.int32, device="cuda")
    result.add_(1)  # loads the kernel
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        tensors = queue.get()
    total = sum(int(tensor[0]) for tensor in tensors[:: TENSORS // 10])

    def release() -> None:
        while tensors:
            tensors.pop()

    releasing = threading.Thread(target=release)
    releasing.start()
    captures = lost = 0
    while releasing.is_alive():
        graph = torch.cuda.CUDAGraph()
        captures += 1
        lost += not capture(graph, stream, result, silent)
        del graph
    releasing.join()
    torch.cuda.synchronize()
    pipe.send((captures, lost, total))
    pipe.recv()


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    context = mp.get_context("spawn")
    queue = context.Queue()
    ours, theirs = context.Pipe()
    consumer = context.Process(
        target=consume, args=(queue, theirs, sys.argv[1], "silent" in sys.argv)
    )
    consumer.start()
    theirs.close()
    tensors = [torch.full((ELEMENTS,), 3, dtype=torch.int32, device="cuda") for _ in range(TENSORS)]
    queue.put(tensors)
    if not ours.poll(90):
        raise TimeoutError("the consumer did not capture")
    captures, lost, total = ours.recv()
    del tensors
    wait_for_empty_limbo()
    ours.send("bye")
    consumer.join(30)
    report(captures=captures, lost=lost, total=total, exit=consumer.exitcode)
    return 0


if __name__ == "__main__":
    run(main)
