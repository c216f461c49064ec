"""``python -m torch_limbo doctor``: what lending needs of this machine, each tried.

One line per capability. Where one of several GPUs cannot be asked, its error stands beside what the
others answer, and those are tried. The host's and the streams' are tried by the library
(ipc/probes.h); that memory can be lent is tried by lending it to a process, which reads it, is
killed while it holds it, and gives it back by that.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

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
        gpus, found = _gpus()
        gpus, streams = _stream_memory_operations(gpus)
        lines.update({line.name: line for line in (*found, *_host(), *streams)})
        why = "no GPU works"
        if gpus:
            from .lending_trial import lending

            for line in lending(gpus):
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


def _gpus() -> tuple[list[int], list[Capability]]:
    """Those that work, by index, and the line of all."""
    good: list[int] = []

    def ask() -> Capability:
        from . import _library

        rows = _library.json_of(_library.load().limbo_devices_json())
        if not rows:
            return Capability("GPU", FAILS, "none is visible", "look at CUDA_VISIBLE_DEVICES")
        asked = {row["index"]: _asked(row) for row in rows}
        good.extend(index for index, line in asked.items() if line.state == WORKS)
        seen = "; ".join(f"{index}: {line.seen}" for index, line in asked.items())
        # Of one that cannot be asked it says what to do, also where others work.
        advice = next((line.advice for line in asked.values() if line.state == FAILS), "")
        return Capability("GPU", WORKS if good else FAILS, seen, advice)

    return good, attempt(("GPU",), ask)


def _asked(row: dict[str, Any]) -> Capability:
    """What one GPU answers."""
    import torch

    from . import _library

    advice = "run nvidia-smi, which may say why; CUDA_VISIBLE_DEVICES leaves a GPU out"

    def answer() -> Capability:
        if "error" in row:
            raise RuntimeError(row["error"])
        index = row["index"]
        name = "simulated" if _library.simulated() else torch.cuda.get_device_name(index)
        memory = f"{row['free_bytes'] / 2**30:.1f} of {row['total_bytes'] / 2**30:.1f} GiB free"
        return Capability("GPU", WORKS, f"{name}, {row['uuid']}, {memory}")

    return attempt(("GPU",), answer, advice)[0]


def _host() -> list[Capability]:
    """The library's probes of the host."""
    return attempt(("runtime directory", "pidfd", "life line", "memfd seals"), lambda: _probed(-1))


def _probed(device: int) -> list[Capability]:
    from . import _library

    rows = _library.json_of(_library.load().limbo_probes_json(device))
    states = {True: WORKS, False: FAILS}
    return [
        Capability(row["name"], states[row["works"]], row["seen"], row["advice"]) for row in rows
    ]


def _stream_memory_operations(gpus: list[int]) -> tuple[list[int], list[Capability]]:
    """Those of the GPUs that have them (if none has, all), and the line of all; none of no GPU."""
    name = "stream memory operations"
    found = {
        gpu: line
        for gpu in gpus
        for line in attempt((name,), lambda gpu=gpu: _probed(gpu))  # type: ignore[misc]
        if line.name == name
    }
    if not found:
        return gpus, []
    good = [gpu for gpu, line in found.items() if line.state == WORKS]
    seen = "; ".join(f"GPU {gpu}: {line.seen}" for gpu, line in found.items())
    advice = next((line.advice for line in found.values() if line.state == FAILS), "")
    return good or gpus, [Capability(name, WORKS if good else FAILS, seen, advice)]


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
