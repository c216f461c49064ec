"""What the scripts share: their end, results as one JSON line, waiting for conditions, balances."""

from __future__ import annotations

import gc
import json
import multiprocessing.process
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

RESULT = "RESULT "


def report(**values: Any) -> None:
    """Print the result for the test that runs this script."""
    print(RESULT + json.dumps(values), flush=True)


def note(*words: object) -> None:
    """Diagnostics, shown when the test fails."""
    print(f"[{time.monotonic():.3f} pid {os.getpid()}]", *words, file=sys.stderr, flush=True)


def run(main: Callable[[], int]) -> NoReturn:
    """End the script as main() ends. An error is told at once, with what became of the children:
    multiprocessing would wait for them first, and they for this process."""
    started = time.monotonic()
    children = multiprocessing.process._children  # type: ignore[attr-defined]
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
        enough = time.monotonic() + 0.5
        for child in list(children):
            # One that has let go of its pipe may not have ended yet.
            child.join(max(0.01, enough - time.monotonic()))
            note(f"child {child.pid}: exit code {child.exitcode} (None: it still runs)")
            child.kill()
        sys.stdout.flush()
        os._exit(1)
    for child in multiprocessing.active_children():
        note(f"child {child.pid} still runs, and is killed")
        child.kill()
    note(f"main() took {time.monotonic() - started:.1f} s")
    sys.exit(code)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Poll until the condition holds; the seconds it took. TimeoutError names what was awaited."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise TimeoutError(f"after {seconds} s: {what}")
        time.sleep(0.0005)
    return time.monotonic() - start


def next_of(queue: Any, senders: Iterable[Any], seconds: float = 60.0) -> Any:
    """The next thing that comes through a queue; RuntimeError as soon as one of the processes that
    send has failed."""

    def has_come() -> bool:
        for sender in senders:
            if sender.exitcode not in (None, 0):
                raise RuntimeError(f"process {sender.pid} failed: exit code {sender.exitcode}")
        return not queue.empty()

    wait_until(has_come, seconds, "nothing came through the queue")
    return queue.get()


def limbo_blocks() -> int:
    """Blocks that are freed and still pinned, after a collect."""
    import torch_limbo

    torch_limbo.collect()
    return int(torch_limbo.stats()["limbo_blocks"])


def wait_for_empty_limbo(seconds: float = 20.0) -> float:
    """Wait until every lent block is back; the text of a time-out says who holds what."""
    import torch_limbo

    gc.collect()
    try:
        return wait_until(lambda: limbo_blocks() == 0, seconds, "blocks are still in limbo")
    except TimeoutError as late:
        raise TimeoutError(
            f"{late}; holders: {torch_limbo.holders()}; statistics: {torch_limbo.stats()}"
        ) from None


def memory_use() -> dict[str, int]:
    """Allocated, active and reserved bytes by torch's own functions."""
    import torch

    numbers = torch.cuda.memory_stats()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "active": int(numbers["active_bytes.all.current"]),
        "reserved": torch.cuda.memory_reserved(),
    }


def descriptors() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
