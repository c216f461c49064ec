"""``python -m torch_limbo bench``: what allocating and sharing cost here, in a few seconds.

The median of several rounds, each in one thread, by way of Python: with what torch's own functions
and the interpreter add. (``tests/bench`` measures the library itself.) On a GPU the allocation is
measured under torch's own allocator as well, in a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from . import _library, api
from ._children import command_of
from .devices import require_gpu

ROUNDS = 7
SIZES = (512, 4096, 1 << 20, 64 << 20)
_MESSAGES = 200


@dataclass(frozen=True)
class Result:
    """One measured thing."""

    what: str
    microseconds: float
    native_microseconds: float | None = None
    """The same under torch's own allocator, where that was measured."""


def empty(size_bytes: int) -> torch.Tensor:
    """A tensor on the first GPU, simulated or not."""
    if _library.simulated_is_chosen():
        made: torch.Tensor = torch.ops.limbo.sim_empty([size_bytes], dtype=torch.uint8, device=0)
        return made
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def microseconds(body: Callable[[], object], count: int) -> float:
    """The median over the rounds of what one call of `count` costs."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            body()
        rounds.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(rounds)


def allocation() -> dict[str, float]:
    """What it costs to make and drop a tensor whose memory is there, by its size in bytes."""
    found = {}
    for size in SIZES:
        empty(size)
        found[str(size)] = microseconds(lambda size=size: empty(size), 2000)  # type: ignore[misc]
    return found


def receiving() -> None:
    """The other process: opens and drops what standard input names, and says what that cost."""
    for line in sys.stdin:
        messages = [bytes.fromhex(message) for message in line.split()]
        start = time.perf_counter()
        tensors = [api.receive(message) for message in messages]
        between = time.perf_counter()
        tensors.clear()
        end = time.perf_counter()
        count = len(messages)
        print(json.dumps([(between - start) / count * 1e6, (end - between) / count * 1e6]))
        sys.stdout.flush()


def _child(role: str, **pipes: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_of("bench", role),
        text=True,
        stdout=subprocess.PIPE,
        env=_environment(),
        **pipes,
    )


def _environment() -> dict[str, str]:
    """Ours, with torch's own allocator."""
    return {name: value for name, value in os.environ.items() if name != "LIMBO_ENABLE"}


def print_native_allocation() -> None:
    """In a process of its own, where torch's allocator is in place."""
    print(json.dumps(allocation()))


def _native_allocation() -> dict[str, float]:
    if _library.simulated_is_chosen():
        return {}
    child = _child("print_native_allocation")
    output, _ = child.communicate()
    return dict(json.loads(output)) if child.returncode == 0 else {}


def _sharing() -> list[Result]:
    child = _child("receiving", stdin=subprocess.PIPE)
    try:
        return _shared_with(child)
    except OSError:  # nobody reads what it is sent
        raise _ended(child) from None
    finally:
        child.kill()
        child.wait()


def _ended(child: subprocess.Popen[str]) -> RuntimeError:
    """What the child has to say stands on standard error, which is ours."""
    return RuntimeError(f"the process that was lent to has ended with {child.wait()}")


def _shared_with(child: subprocess.Popen[str]) -> list[Result]:
    assert child.stdin is not None
    assert child.stdout is not None
    tensors = [empty(4096) for _ in range(_MESSAGES)]
    shares, receives, releases = [], [], []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        messages = [api.share(tensor) for tensor in tensors]
        shares.append((time.perf_counter() - start) / _MESSAGES * 1e6)
        child.stdin.write(" ".join(message.hex() for message in messages) + "\n")
        child.stdin.flush()
        answer = child.stdout.readline()
        if not answer:
            raise _ended(child)
        receive, release = json.loads(answer)
        receives.append(receive)
        releases.append(release)
        api.collect()
    # The first round has the handshake and the opening of the memory in it.
    return [
        Result("share a tensor of 4 KiB", statistics.median(shares[1:])),
        Result("receive it", statistics.median(receives[1:])),
        Result("let go of it", statistics.median(releases[1:])),
    ]


def echo(inbox: Any, answers: Any) -> None:
    """Sends each tensor's number of elements back until None comes."""
    while (tensor := inbox.get()) is not None:
        answers.send(tensor.numel())


def _queue() -> Result:
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    inbox = context.SimpleQueue()
    answers, theirs = context.Pipe(duplex=False)
    process = context.Process(target=echo, args=(inbox, theirs))
    process.start()
    theirs.close()  # so that the process's end is the end of its answers
    tensor = empty(4096)

    def there_and_back() -> None:
        inbox.put(tensor)
        answers.recv()

    try:
        there_and_back()
        found = microseconds(there_and_back, 100)
        inbox.put(None)
        process.join()
    except (EOFError, OSError):
        process.join()
        raise RuntimeError(
            f"the process at the queue's other end has ended with {process.exitcode}"
        ) from None
    finally:
        process.kill()
    return Result("a tensor through an mp.SimpleQueue, and an answer", found)


def measure() -> list[Result]:
    """Everything, in a few seconds. Errors: ``device_error`` without a GPU, RuntimeError where a
    second process ends; as `enable`, `share` and `receive`."""
    if not _library.simulated_is_chosen():
        require_gpu("LIMBO_DEVICE=simulated measures the simulated one.")
    native = _native_allocation()
    api.enable()
    results = [
        Result(f"make and drop a tensor of {_size_text(int(size))}", found, native.get(size))
        for size, found in allocation().items()
    ]
    results += _sharing()
    results.append(_queue())
    results.append(Result("collect when nothing has changed", microseconds(api.collect, 1000)))
    return results


def _size_text(size_bytes: int) -> str:
    from .listing import bytes_text

    return bytes_text(size_bytes).replace(".0", "")


def run_bench(as_json: bool) -> int:
    """Print it; the exit code."""
    results = measure()
    gpu = "the simulated GPU" if _library.simulated() else torch.cuda.get_device_name(0)
    if as_json:
        print(
            json.dumps(
                {
                    "gpu": gpu,
                    "torch": torch.__version__,
                    "results": [asdict(result) for result in results],
                },
                indent=2,
            )
        )
        return 0
    print(f"{gpu}, torch {torch.__version__}, {os.cpu_count()} CPUs; microseconds\n")
    width = max(len(result.what) for result in results)
    with_native = any(result.native_microseconds is not None for result in results)
    if with_native:
        print(f"{'':{width}}  {'Limbo':>9}  {'native':>9}")
    for result in results:
        native = ""
        if result.native_microseconds is not None:
            native = f"  {result.native_microseconds:9.2f}"
        print(f"{result.what:{width}}  {result.microseconds:9.2f}{native}")
    return 0
