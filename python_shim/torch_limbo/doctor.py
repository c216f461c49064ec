"""``python -m torch_limbo doctor``: what lending needs of this machine, each tried.

One line per capability. The host's and the streams' are tried by the library (ipc/probes.h); that
memory can be lent is tried by lending it to a process, which reads it, is killed while it holds it,
and gives it back by that.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import _torch
from ._version import __version__

WORKS, FAILS, NOT_NEEDED, UNKNOWN = "works", "does not", "not needed", "not tried"

#: How the lines behind the first three follow one another.
_ORDER = (
    "memory handles",
    "stream memory operations",
    "runtime directory",
    "pidfd",
    "life line",
    "memfd seals",
    "MPS",
    "namespaces",
    "peer access",
)
#: The first driver version that has what lending needs: CUDA 12.
_DRIVER_NEEDED = 12000
#: Killed receivers' memory must be back after this, in seconds (2 s of grace, and some more).
_RETURN_S = 10.0
#: A receiver starts, and opens memory, within this time, in seconds; it takes a few.
_ANSWER_S = 60.0


@dataclass(frozen=True)
class Capability:
    """One line of the report."""

    name: str
    state: str
    seen: str
    advice: str = ""
    needed: bool = True
    """Without it nothing can be lent."""

    def line(self, width: int) -> str:
        """As it is printed; `width` is that of the longest name."""
        advice = f" To do: {self.advice.rstrip('.')}." if self.advice else ""
        return f"{self.name:{width}}  {self.state:10}  {self.seen.rstrip('.')}.{advice}"


def report() -> list[Capability]:
    """Try everything; nothing is raised."""
    torch_line = _torch_capability()
    driver = _driver()
    if torch_line.state == FAILS:
        return [torch_line, driver]
    lines = {line.name: line for line in (_gpu(), *_probes())}
    gpu = lines["GPU"]
    if gpu.state == WORKS:
        tried = _lending()
    else:
        tried = [
            Capability(name, UNKNOWN, "there is no GPU", needed=needed)
            for name, needed in (
                ("memory handles", True),
                ("namespaces", False),
                ("peer access", False),
            )
        ]
    for line in tried:
        if line.name == "life line":  # what was seen of a killed receiver, behind the probe's
            before = lines["life line"]
            if before.state == WORKS:
                line = replace(line, seen=f"{before.seen}; {line.seen}", advice=before.advice)
        lines[line.name] = line
    lines["MPS"] = _mps()
    return [torch_line, driver, gpu, *(lines[name] for name in _ORDER if name in lines)]


def can_lend(lines: list[Capability]) -> bool:
    """Whether everything that lending needs works."""
    return all(line.state in (WORKS, NOT_NEEDED) for line in lines if line.needed)


def run_doctor(as_json: bool) -> int:
    """Print the report; the exit code: 0, or 1 if nothing can be lent here."""
    lines = report()
    good = can_lend(lines)
    if as_json:
        capabilities = [asdict(line) for line in lines]
        print(
            json.dumps(
                {"limbo": __version__, "can_lend": good, "capabilities": capabilities}, indent=2
            )
        )
        return 0 if good else 1
    width = max(len(line.name) for line in lines)
    for line in lines:
        print(line.line(width))
    missing = [line.name for line in lines if line.needed and line.state in (FAILS, UNKNOWN)]
    print()
    print("Lending works here." if good else f"Nothing can be lent here: {', '.join(missing)}.")
    return 0 if good else 1


def _torch_capability() -> Capability:
    refusal = _torch.refusal()
    if refusal is not None:
        return Capability("torch", FAILS, str(refusal))
    import torch

    from . import _library
    from .errors import LimboError

    try:
        _library.load()
    except LimboError as error:
        return Capability("torch", FAILS, f"torch {torch.__version__}, but {error}")
    path = _library.library_path()
    return Capability("torch", WORKS, f"torch {torch.__version__}; Limbo {__version__} in {path}")


def _is_simulated() -> bool:
    return os.environ.get("LIMBO_DEVICE") == "simulated"


def _driver() -> Capability:
    if _is_simulated():
        return Capability("driver", NOT_NEEDED, "LIMBO_DEVICE=simulated")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Capability(
            "driver",
            FAILS,
            str(error),
            "install NVIDIA's driver; in a container start it with its GPUs (docker run --gpus "
            "all); LIMBO_DEVICE=simulated tries Limbo without one",
        )
    version = ctypes.c_int()
    result = driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version))
    if result != 0:
        return Capability(
            "driver", FAILS, f"cuInit says error {result}", "run nvidia-smi, which may say why"
        )
    cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    seen = f"{_driver_release()}{cuda}"
    if version.value < _DRIVER_NEEDED:
        return Capability("driver", FAILS, seen, "install a driver of CUDA 12 or newer")
    return Capability("driver", WORKS, seen)


def _driver_release() -> str:
    """ "580.65.06, ", or nothing where the kernel module does not say."""
    try:
        text = Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    return f"{text}, "


def _gpu() -> Capability:
    import torch

    from . import _library
    from .errors import LimboError

    try:
        rows = _library.json_of(_library.load().limbo_devices_json())
    except LimboError as error:
        return Capability("GPU", FAILS, str(error))
    if not rows:
        return Capability("GPU", FAILS, "none is visible", "look at CUDA_VISIBLE_DEVICES")
    parts = []
    for row in rows:
        index = row["index"]
        name = "simulated" if _library.simulated() else torch.cuda.get_device_name(index)
        memory = f"{row['free_bytes'] / 2**30:.1f} of {row['total_bytes'] / 2**30:.1f} GiB free"
        parts.append(f"{index}: {name}, {row['uuid']}, {memory}")
    return Capability("GPU", WORKS, "; ".join(parts))


def _probes() -> list[Capability]:
    """The library's probes, of every GPU."""
    from . import _library
    from .errors import LimboError

    library = _library.load()
    lines = []
    for row in _library.json_of(library.limbo_probes_json(-1)):
        state = WORKS if row["works"] else FAILS
        lines.append(Capability(row["name"], state, row["seen"], row["advice"]))
    streams = Capability("stream memory operations", UNKNOWN, "there is no GPU")
    try:
        for gpu in _library.json_of(library.limbo_devices_json()):
            (row,) = (
                row
                for row in _library.json_of(library.limbo_probes_json(gpu["index"]))
                if row["name"] == streams.name
            )
            seen = f"GPU {gpu['index']}: {row['seen']}"
            if streams.state != UNKNOWN:
                seen = f"{streams.seen}; {seen}"
            works = row["works"] and streams.state != FAILS
            state, advice = (WORKS, "") if works else (FAILS, row["advice"] or streams.advice)
            streams = Capability(streams.name, state, seen, advice)
    except LimboError:
        pass  # the line of the GPU says it
    return [*lines, streams]


def _mps() -> Capability:
    """By what an MPS server's clients go by, and what the library looks at."""
    place = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    named = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    runs = os.path.exists(os.path.join(place, "control"))
    if not named and not runs:
        return Capability("MPS", NOT_NEEDED, "no server runs", needed=False)
    seen = f"its place is {place}, where {'a' if runs else 'no'} server listens"
    seen += "; a dead receiver's memory comes back after 2 s of grace"
    return Capability("MPS", WORKS, seen, needed=False)


class _Receiver:
    """A process that opens messages; receiver.py is its other side."""

    def __init__(self, *wrapper: str) -> None:
        command = [*wrapper, sys.executable, "-m", "torch_limbo.receiver"]
        package = str(Path(__file__).resolve().parent.parent)
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def __enter__(self) -> _Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def read(self, message: bytes, device: int = -1) -> str:
        """The sum of the tensor, or what went wrong in one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{device} {message.hex()}\n")
            self._process.stdin.flush()
            # A line at a time: nothing is read ahead.
            if not select.select([self._process.stdout], [], [], _ANSWER_S)[0]:
                return f"it gave no answer for {_ANSWER_S:g} s"
            answer = self._process.stdout.readline().strip()
        except OSError:
            answer = ""
        if answer:
            return answer
        self._process.kill()
        _, errors = self._process.communicate()
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        return lines[-1] if lines else f"the process ended with {self._process.returncode}"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def _lending() -> list[Capability]:
    """What only two processes can show."""
    import torch

    from . import _library, api
    from .errors import LimboError

    def filled(device: int) -> torch.Tensor:
        if not _library.simulated():
            return torch.full((1024,), 3.0, device=torch.device("cuda", device))
        made: torch.Tensor = torch.ops.limbo.sim_empty([1024], dtype=torch.float32, device=device)
        torch.ops.limbo.sim_fill(made, 3.0)
        return made

    try:
        api.enable()
        with _Receiver() as receiver:
            return [
                *_lend_and_kill(filled, receiver),
                _namespaces(filled),
                _peer_access(filled),
            ]
    except (LimboError, RuntimeError, OSError) as error:
        return [Capability("memory handles", FAILS, f"lending to a process: {error}")]


_EXPECTED = "sum 3072.0"


def _lend_and_kill(
    filled: Callable[[int], Any], receiver: _Receiver
) -> tuple[Capability, Capability]:
    from . import api

    tensor = filled(0)
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
    api.collect()
    killed = time.monotonic()
    receiver.kill()
    while api.stats()["limbo_blocks"] and time.monotonic() - killed < _RETURN_S:
        api.collect()
        time.sleep(0.0005)
    passed = f"{(time.monotonic() - killed) * 1e3:.0f} ms"
    if api.stats()["limbo_blocks"]:
        why = "; ".join(holder.why for holder in api.holders() if holder.why)
        return lent, Capability(
            "life line", FAILS, f"a killed receiver's memory is not back after {passed}: {why}"
        )
    return lent, Capability("life line", WORKS, f"a killed receiver's memory came back in {passed}")


def _namespaces(filled: Callable[[int], Any]) -> Capability:
    """Lends to a process of another pid namespace."""
    from . import api

    name = "namespaces"
    inside = _pid_namespace()
    unshare = shutil.which("unshare")
    if unshare is None:
        return Capability(
            name, UNKNOWN, f"{inside}; there is no unshare (util-linux) to make one with", "", False
        )
    wrapper = [unshare, "--fork", "--kill-child", "--pid"]
    if os.geteuid() != 0:
        wrapper += ["--user", "--map-root-user"]
    refused = subprocess.run([*wrapper, "true"], capture_output=True, text=True, check=False)
    if refused.returncode != 0:
        words = (refused.stderr.strip().splitlines() or ["unshare failed"])[-1]
        return Capability(
            name, UNKNOWN, f"{inside}; another cannot be made here ({words})", "", False
        )
    with _Receiver(*wrapper) as receiver:
        answer = receiver.read(api.share(filled(0)))
    if answer == _EXPECTED:
        return Capability(
            name, WORKS, f"{inside}; a process of another one read what it was lent", "", False
        )
    return Capability(
        name,
        FAILS,
        f"{inside}; a process of another one says: {answer}",
        "give containers that lend to each other one runtime directory, and one pid and IPC "
        "namespace where the driver asks for it",
        False,
    )


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


def _peer_access(filled: Callable[[int], Any]) -> Capability:
    """Opens memory of each GPU on each other one."""
    from . import _library, api

    name = "peer access"
    count = len(_library.json_of(_library.load().limbo_devices_json()))
    if count < 2:
        return Capability(name, NOT_NEEDED, "there is one GPU", needed=False)
    refused = []
    with _Receiver() as receiver:
        for owner, other in itertools.permutations(range(count), 2):
            answer = receiver.read(api.share(filled(owner)), other)
            if answer != _EXPECTED:
                refused.append(f"GPU {owner}'s memory on GPU {other}: {answer}")
    if refused:
        return Capability(
            name,
            FAILS,
            "; ".join(refused),
            "lend to processes on the same GPU, or copy",
            needed=False,
        )
    return Capability(name, WORKS, f"memory of each of {count} GPUs read on each other", "", False)
