"""What goes wrong for users of other software, from Python: each case ends as it should.

Runs on the simulated device, too (with cuda_on_simulated/ on the path).
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing as mp
from common import limbo_blocks, report, run, wait_for_empty_limbo, wait_until

WORDS = 100_000
FULL = 20

#: What a process of `serve` holds.
HELD: list[torch.Tensor] = []


def values(number: int) -> torch.Tensor:
    return torch.arange(number, number + WORDS, dtype=torch.int32)


def is_right(tensor: torch.Tensor, number: int) -> bool:
    return torch.equal(tensor.cpu(), values(number))


def open_and_hold(message: bytes, times: int, number: int) -> list[bool]:
    """Opens a message, pickled or not, and looks at what it gives."""
    import torch_limbo

    opened = pickle.loads if message[:1] == b"\x80" else torch_limbo.receive
    HELD.extend(opened(message) for _ in range(times))
    return [is_right(tensor, number) for tensor in HELD]


def look_again(number: int) -> list[bool]:
    return [is_right(tensor, number) for tensor in HELD]


def let_go() -> None:
    HELD.clear()
    gc.collect()


def send_on() -> bytes:
    import torch_limbo

    return torch_limbo.share(HELD[0])


def leave() -> None:
    os._exit(0)


class Other:
    """Another process, which does what it is told."""

    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def tell(self, function: Any, *arguments: Any) -> None:
        self.pipe.send((function, arguments))

    def call(self, function: Any, *arguments: Any) -> Any:
        self.tell(function, *arguments)
        if not self.pipe.poll(90):
            raise TimeoutError(f"process {self.process.pid} gave no answer")
        return self.pipe.recv()

    def end(self) -> int | None:
        self.pipe.send(None)
        self.process.join(60)
        return self.process.exitcode


def serve(pipe: Any) -> None:
    import torch_limbo

    assert torch_limbo.library_path().exists()
    while (call := pipe.recv()) is not None:
        function, arguments = call
        pipe.send(function(*arguments))


def numbers() -> dict[str, int]:
    import torch_limbo

    stats = torch_limbo.stats()
    names = ("allocated_bytes", "active_bytes", "limbo_blocks", "claims_swept", "expired")
    return {name: stats[name] for name in names}


def on_the_gpu(number: int) -> torch.Tensor:
    return values(number).to("cuda")


def as_message(tensor: torch.Tensor, way: str) -> bytes:
    """As bytes, or as torch.multiprocessing sends it."""
    import torch_limbo

    return torch_limbo.share(tensor) if way == "bytes" else bytes(ForkingPickler.dumps(tensor))


def opened_times(reader: Other, way: str) -> dict[str, Any]:
    """A message that is opened not at all, once, and three times by its one reader."""
    import torch_limbo

    result = {}
    for times in (1, 3, 0):
        before = numbers()
        if times == 0:
            torch_limbo.enable(message_time_limit_ms=50)
        tensor = on_the_gpu(times)
        message = as_message(tensor, way)
        torch_limbo.enable(message_time_limit_ms=600_000)
        right = reader.call(open_and_hold, message, times, times) if times else []
        del tensor
        gc.collect()
        held = limbo_blocks()
        reader.call(let_go)
        wait_for_empty_limbo()
        result[str(times)] = {
            "right": right,
            "held": held,
            "before": before,
            "after": numbers(),
        }
    return result


def left() -> dict[str, Any]:
    """A reader leaves by os._exit while it holds ten tensors."""
    import torch_limbo

    reader = Other()
    before = numbers()
    right: list[bool] = []
    for _ in range(10):
        right = reader.call(open_and_hold, as_message(on_the_gpu(7), "pickle"), 1, 7)
    gc.collect()
    held = numbers()["limbo_blocks"]
    reader.tell(leave)
    reader.process.join(60)
    # Nobody does anything for it here, not even collect.
    seconds = wait_until(
        lambda: torch_limbo.stats()["limbo_blocks"] == 0, 20, "the dead one's blocks are kept"
    )
    return {
        "right": right,
        "held": held,
        "exit": reader.process.exitcode,
        "seconds": seconds,
        "before": before,
        "after": numbers(),
    }


def chain(last: Other) -> dict[str, Any]:
    """This process sends to a second one, which sends on to the last and ends."""
    before = numbers()
    second = Other()
    tensor = on_the_gpu(3)
    right = second.call(open_and_hold, as_message(tensor, "bytes"), 1, 3)
    right += last.call(open_and_hold, second.call(send_on), 1, 3)
    del tensor
    gc.collect()
    exit_code = second.end()
    with_both_gone = [limbo_blocks() for _ in range(3)]
    # What would be reused too early is what is allocated now.
    others = [on_the_gpu(100 + number) for number in range(5)]
    right += last.call(look_again, 3)
    del others
    last.call(let_go)
    wait_for_empty_limbo()
    return {
        "right": right,
        "held": with_both_gone,
        "exit": exit_code,
        "before": before,
        "after": numbers(),
    }


def start(role: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"process {process.pid} has ended: {process.communicate()[1]}")
    return line.strip()


def send_and_exit() -> int:
    """In a process of its own: exits with limbo full of what its reader holds, and with messages
    that nobody opens."""
    import torch_limbo

    torch_limbo.enable(exit_drain_ms=200)
    tensors = [on_the_gpu(number) for number in range(FULL)]
    for tensor in tensors:
        print(torch_limbo.share(tensor).hex(), flush=True)
    unopened = [torch_limbo.share(tensor) for tensor in tensors]
    sys.stdin.readline()  # the reader has them
    del tensor
    tensors.clear()
    assert (limbo_blocks(), len(unopened)) == (FULL, FULL)
    return 0


def hold_and_exit() -> int:
    """In a process of its own: exits while it holds what it was sent."""
    import torch_limbo

    for number in range(FULL):
        HELD.append(torch_limbo.receive(bytes.fromhex(sys.stdin.readline())))
        assert is_right(HELD[-1], number)
    print("held", flush=True)
    sys.stdin.readline()
    return 0


def a_sender_exits() -> dict[str, Any]:
    import torch_limbo

    sender = start("send_and_exit")
    tensors = [torch_limbo.receive(bytes.fromhex(line_of(sender))) for _ in range(FULL)]
    _, said = sender.communicate("\n", timeout=90)
    right = [is_right(tensor, number) for number, tensor in enumerate(tensors)]
    return {"right": right, "exit": sender.returncode, "said": said}


def a_reader_exits() -> dict[str, Any]:
    import torch_limbo

    before = numbers()
    reader = start("hold_and_exit")
    assert reader.stdin is not None
    for number in range(FULL):
        reader.stdin.write(torch_limbo.share(on_the_gpu(number)).hex() + "\n")
    reader.stdin.flush()
    assert line_of(reader) == "held"
    held = limbo_blocks()
    _, said = reader.communicate("\n", timeout=90)
    wait_for_empty_limbo()
    return {
        "held": held,
        "exit": reader.returncode,
        "said": said,
        "before": before,
        "after": numbers(),
    }


ROLES = {"send_and_exit": send_and_exit, "hold_and_exit": hold_and_exit}


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    reader = Other()
    reader.call(open_and_hold, as_message(on_the_gpu(0), "bytes"), 1, 0)  # the warm-up
    reader.call(let_go)
    wait_for_empty_limbo()
    report(
        opened={way: opened_times(reader, way) for way in ("bytes", "pickle")},
        left=left(),
        chain=chain(reader),
        sender=a_sender_exits(),
        reader=a_reader_exits(),
        exit=reader.end(),
    )
    return 0


if __name__ == "__main__":
    if sys.argv[1:]:  # started by the script itself, which looks at all that is said
        sys.exit(ROLES[sys.argv[1]]())
    run(main)
