"""What `doctor` tries with a second process: that memory can be lent, here and across namespaces
and GPUs, and comes back when its holder is killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._children import command_of
from .capability import FAILS, NOT_NEEDED, UNKNOWN, WORKS, Capability, attempt

#: Killed receivers' memory must be back after this, in seconds (2 s of grace, and some more).
_RETURN_S = 10.0
#: A receiver starts, and opens memory, within this time, in seconds; it takes a few.
_ANSWER_S = 60.0
#: A receiver that answers no more has ended after this, in seconds, or is killed.
_ENDS_S = 5.0
#: What to do where memory of one GPU does not open on another.
_SAME_GPU = "lend to processes on the same GPU, or copy"


class Receiver:
    """A process that opens messages; receiver.py is its other side. One that has failed is killed,
    and the next message has another."""

    def __init__(self, *wrapper: str) -> None:
        self._command = [*wrapper, *command_of("receiver", "main")]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read(self, message: bytes, device: int = -1) -> str:
        """The sum of the tensor, or what went wrong in one line."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{device} {message.hex()}\n")
            process.stdin.flush()
            # A line at a time: nothing is read ahead.
            if not select.select([process.stdout], [], [], _ANSWER_S)[0]:
                self.kill()  # an answer that comes later is no other message's
                return f"it gave no answer for {_ANSWER_S:g} s"
            answer = process.stdout.readline().strip()
        except OSError:
            answer = ""
        if answer:
            return answer
        # What it says at its end comes with that: nothing is killed in the middle of a sentence.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_S)
        errors = self.kill()
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        return lines[-1] if lines else f"the process ended with {process.returncode}"

    def kill(self) -> str:
        """End it; what it has written to standard error."""
        process, self._process = self._process, None
        if process is None:
            return ""
        process.kill()
        with contextlib.suppress(OSError):  # what was written and not flushed has no reader
            return process.communicate()[1]
        return ""


def _filled(device: int) -> Any:
    """A tensor whose sum is `_EXPECTED`."""
    import torch

    from . import _library

    if not _library.simulated():
        return torch.full((1024,), 3.0, device=torch.device("cuda", device))
    made = torch.ops.limbo.sim_empty([1024], dtype=torch.float32, device=device)
    torch.ops.limbo.sim_fill(made, 3.0)
    return made


_EXPECTED = "sum 3072.0"


def lending(gpus: Sequence[int]) -> list[Capability]:
    """What only two processes can show, each for itself: on the first of these GPUs, and between
    them."""
    first = gpus[0]
    lines = attempt(("memory handles", "life line"), lambda: _lend_and_kill(first))
    if lines[0].state != WORKS:
        return lines + [
            Capability(name, UNKNOWN, "nothing could be lent")
            for name in ("namespaces", "peer access")
        ]
    return [
        *lines,
        *attempt(("namespaces",), lambda: _namespaces(first)),
        *attempt(("peer access",), lambda: _peer_access(gpus), _SAME_GPU),
    ]


def _lend_and_kill(gpu: int) -> tuple[Capability, Capability]:
    from . import api

    api.enable()
    with Receiver() as receiver:
        tensor = _filled(gpu)
        answer = receiver.read(api.share(tensor))
        if answer != _EXPECTED:
            lent = Capability(
                "memory handles",
                FAILS,
                f"a process that was lent memory says: {answer}",
                "in containers start both with one IPC namespace (docker run --ipc)",
            )
            return lent, Capability("life line", UNKNOWN, "nothing could be lent")
        lent = Capability("memory handles", WORKS, "another process read what it was lent")
        del tensor
        return lent, _kill(receiver)


def _kill(receiver: Receiver) -> Capability:
    """Kills it while it holds memory, and waits for that."""
    from . import api

    api.collect()
    killed = time.monotonic()
    receiver.kill()
    while api.stats()["limbo_blocks"] and time.monotonic() - killed < _RETURN_S:
        api.collect()
        time.sleep(0.0005)
    passed = f"{(time.monotonic() - killed) * 1e3:.0f} ms"
    if not api.stats()["limbo_blocks"]:
        seen = f"a killed receiver's memory came back in {passed}"
        return Capability("life line", WORKS, seen)
    why = "; ".join(holder.why for holder in api.holders() if holder.why)
    return Capability(
        "life line",
        FAILS,
        f"a killed receiver's memory is not back after {passed}: "
        f"{why or 'it is not known to have ended'}",
        "load Limbo before CUDA is started and before children are forked; what can never be known "
        "to have ended gives its memory back by torch_limbo.reap(force=True)",
    )


def _namespaces(gpu: int) -> Capability:
    """Lends to a process of another pid namespace."""
    from . import _library, api

    name = "namespaces"
    inside = _pid_namespace()
    unshare = shutil.which("unshare")
    if unshare is None:
        why = "there is no unshare (util-linux) to make one with"
        return Capability(name, UNKNOWN, f"{inside}; {why}")
    wrapper = [unshare, "--fork", "--kill-child", "--pid"]
    if os.geteuid() != 0:
        wrapper += ["--user", "--map-root-user"]
    # As in a container, with a /proc of its own, where that can be had.
    words = _refusal([*wrapper, "--mount-proc", "true"])
    if not words:
        wrapper.append("--mount-proc")
    elif words := _refusal([*wrapper, "true"]):
        return Capability(name, UNKNOWN, f"{inside}; another cannot be made here ({words})")
    with Receiver(*wrapper) as receiver:
        answer = receiver.read(api.share(_filled(gpu)))
    if answer == _EXPECTED:
        return Capability(name, WORKS, f"{inside}; a process of another one read what it was lent")
    start_cuda = [*wrapper, sys.executable, "-c", "import torch; torch.cuda.init()"]
    if not _library.simulated() and (words := _refusal(start_cuda)):
        return Capability(
            name,
            UNKNOWN,
            f"{inside}; CUDA does not start in another one that is made here ({words})",
            "run doctor in a container to see what works there",
        )
    return Capability(
        name,
        FAILS,
        f"{inside}; a process of another one says: {answer}",
        "give containers that lend to each other one runtime directory, and one pid and IPC "
        "namespace where the driver asks for it",
    )


def _refusal(command: list[str]) -> str:
    """The last words of a command that fails; nothing of one that does not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_S)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _pid_namespace() -> str:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "which pid namespace this is cannot be read"
    numbers = next(
        (line.split()[1:] for line in text.splitlines() if line.startswith("NSpid:")), []
    )
    if len(numbers) > 1:
        return f"this process is {len(numbers) - 1} pid namespaces inside of /proc's"
    return "this process is in /proc's pid namespace"


def _peer_access(gpus: Sequence[int]) -> Capability:
    """Opens memory of each GPU on each other one."""
    from . import api

    name = "peer access"
    if len(gpus) < 2:
        return Capability(name, NOT_NEEDED, "there is one GPU that works")
    refused = []
    with Receiver() as receiver:
        for owner, other in itertools.permutations(gpus, 2):
            answer = receiver.read(api.share(_filled(owner)), other)
            if answer != _EXPECTED:
                refused.append(f"GPU {owner}'s memory on GPU {other}: {answer}")
    if refused:
        return Capability(name, FAILS, "; ".join(refused), _SAME_GPU)
    return Capability(name, WORKS, f"memory of each of {len(gpus)} GPUs read on each other")
