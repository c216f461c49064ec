"""``python -m torch_limbo doctor``: what lending needs of this machine, each tried.

One line per capability. The host's and the streams' are tried by the library (ipc/probes.h); that
memory can be lent is tried by lending it to a process, which reads it, is killed while it holds it,
and gives it back by that.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from . import _torch
from ._version import __version__
from .capability import FAILS, NEEDED, NOT_NEEDED, UNKNOWN, WORKS, Capability, attempt, failed

#: The first driver version that has what lending needs: CUDA 12.
_DRIVER_NEEDED = 12000


def report() -> list[Capability]:
    """Try everything, a line for each; nothing is raised."""
    lines = {line.name: line for line in (_torch_capability(), _driver(), _mps())}
    if lines["torch"].state == FAILS:
        why = "Limbo cannot be loaded"
    else:
        found = [*attempt(("GPU",), _gpu), *_probes()]
        lines.update({line.name: line for line in found})
        why = "there is no GPU"
        if lines["GPU"].state == WORKS:
            from .lending_trial import lending

            for line in lending():
                lines[line.name] = _both(lines.get(line.name), line)
    return [lines.get(name, Capability(name, UNKNOWN, why)) for name in NEEDED]


def _both(probed: Capability | None, tried: Capability) -> Capability:
    """One line of what the library's probe says and of what was seen of another process."""
    if probed is None or tried.state == UNKNOWN:
        return tried if probed is None else probed
    if probed.state == WORKS:
        advice = tried.advice or probed.advice
        return replace(tried, seen=f"{probed.seen}; {tried.seen}", advice=advice)
    return replace(probed, seen=f"{probed.seen}; {tried.seen}")


def can_lend(lines: list[Capability]) -> bool:
    """Whether everything that lending needs works."""
    return all(line.state in (WORKS, NOT_NEEDED) for line in lines if line.needed)


def run_doctor(as_json: bool) -> int:
    """Print the report; the exit code: 0, or 1 if nothing can be lent here."""
    lines = report()
    good = can_lend(lines)
    if as_json:
        capabilities = [{**asdict(line), "needed": line.needed} for line in lines]
        print(
            json.dumps(
                {"limbo": __version__, "can_lend": good, "capabilities": capabilities}, indent=2
            )
        )
        return 0 if good else 1
    width = max(len(line.name) for line in lines)
    for line in lines:
        print(line.line(width))
    missing = [line.name for line in lines if line.needed and line.state == FAILS]
    print()
    print("Lending works here." if good else f"Nothing can be lent here: {', '.join(missing)}.")
    return 0 if good else 1


def _torch_capability() -> Capability:
    refusal = _torch.refusal()
    if refusal is not None:
        return failed("torch", refusal)
    import torch

    from . import _library
    from .errors import LimboError

    try:
        _library.load()
    except LimboError as error:
        line = failed("torch", error)
        return replace(line, seen=f"torch {torch.__version__}, but {line.seen}")
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

    rows = _library.json_of(_library.load().limbo_devices_json())
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
    hosts = ("runtime directory", "pidfd", "life line", "memfd seals")
    streams = ("stream memory operations",)
    return [*attempt(hosts, lambda: _probed(-1)), *attempt(streams, _stream_memory_operations)]


def _probed(device: int) -> list[Capability]:
    from . import _library

    rows = _library.json_of(_library.load().limbo_probes_json(device))
    states = {True: WORKS, False: FAILS}
    return [
        Capability(row["name"], states[row["works"]], row["seen"], row["advice"]) for row in rows
    ]


def _stream_memory_operations() -> list[Capability]:
    """Of every GPU in one line; nothing where there is none."""
    from . import _library
    from .errors import LimboError

    name = "stream memory operations"
    try:
        gpus = _library.json_of(_library.load().limbo_devices_json())
    except LimboError:
        return []  # the line of the GPU says it
    found = {
        gpu["index"]: line for gpu in gpus for line in _probed(gpu["index"]) if line.name == name
    }
    if not found:
        return []
    seen = "; ".join(f"GPU {index}: {line.seen}" for index, line in found.items())
    refused = [line for line in found.values() if line.state == FAILS]
    return [replace(refused[0], seen=seen) if refused else Capability(name, WORKS, seen)]


def _mps() -> Capability:
    """By what an MPS server's clients go by, and what the library looks at."""
    place = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    named = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    runs = os.path.exists(os.path.join(place, "control"))
    if not named and not runs:
        return Capability("MPS", NOT_NEEDED, "no server runs")
    seen = f"its place is {place}, where {'a' if runs else 'no'} server listens"
    seen += "; a dead receiver's memory comes back after 2 s of grace"
    return Capability("MPS", WORKS, seen)
