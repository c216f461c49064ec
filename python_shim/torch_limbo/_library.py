"""Finding and loading ``libtorch_limbo.so``.

The library is loaded once per process, from one path: a second copy of it would register its
operators twice and end the process. Loading it starts no thread and no CUDA; it makes the life
line by which other processes see that this one's GPU work has ended, so it is loaded early, when
the package is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import torch

from . import _torch
from .errors import LimboError

LIBRARY_NAME = "libtorch_limbo.so"

_loaded: ctypes.CDLL | None = None
_loaded_path: Path | None = None
_load_failed = False
_device_name: str | None = None


def check_torch_version(version: str | None = None) -> None:
    """Raise ``wrong_torch`` unless the running torch is one that the library was built for."""
    running = torch.__version__ if version is None else version
    if not _torch.is_right(running):
        raise LimboError("wrong_torch", _torch.wrong_version_text(running))


def mapped_library() -> Path | None:
    """The path of a ``libtorch_limbo.so`` that is in this process already, by whatever way."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(None, 5)
                if len(fields) == 6 and os.path.basename(fields[5]) == LIBRARY_NAME:
                    return Path(fields[5])
    except OSError:
        pass
    return None


def candidates() -> list[Path]:
    """Where the library may lie, best first: the environment's, the installed, a build tree's."""
    named = os.environ.get("LIMBO_LIBRARY")
    if named:
        return [Path(named).absolute()]  # a bare name would be looked for in the loader's folders
    package = Path(__file__).resolve().parent
    found = [package / "lib" / LIBRARY_NAME]
    source_root = package.parent.parent
    if (source_root / "hooks").is_dir() and (source_root / "build").is_dir():
        built = [
            path
            for pattern in (f"build/*/{LIBRARY_NAME}", f"build/*/*/{LIBRARY_NAME}")
            for path in source_root.glob(pattern)
        ]
        found += sorted(built, key=lambda path: path.stat().st_mtime, reverse=True)
    return found


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def find_library() -> Path:
    """The library to load; raises ``no_library`` with the places that were looked at."""
    mapped = mapped_library()
    places = candidates()
    if mapped is not None:
        named = os.environ.get("LIMBO_LIBRARY")
        if named and not _same_file(Path(named), mapped):
            raise LimboError(
                "no_library",
                f"LIMBO_LIBRARY names {named}, but {mapped} is loaded in this process already, "
                "and a process can have only one. Unset LIMBO_LIBRARY, or let both name one file.",
            )
        return mapped
    for place in places:
        if place.is_file():
            return place
    looked_at = ", ".join(str(place) for place in places)
    raise LimboError(
        "no_library",
        f"{LIBRARY_NAME} was not found; looked at: {looked_at}. Build it "
        "(cmake --workflow --preset release), install the package, or set LIMBO_LIBRARY to the "
        "library's path.",
    )


def load() -> ctypes.CDLL:
    """Load the library, once. Raises ``wrong_torch`` or ``no_library``.

    Thread-safe: two threads that load at once get the same library from the loader.
    """
    global _loaded, _loaded_path
    if _loaded is not None:
        return _loaded
    check_torch_version()
    path = find_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as cause:
        raise LimboError(
            "no_library",
            f"{path} could not be loaded: {cause}. It must fit the torch of this Python "
            f"({torch.__version__}); build it with LIMBO_PYTHON set to this interpreter.",
        ) from cause
    try:
        _declare(library)
    except AttributeError as cause:
        raise LimboError(
            "no_library",
            f"{path} is not of this version of the package: {cause}. Build it again.",
        ) from cause
    if library.limbo_torch_usable() != 0:
        raise last_error(library)
    _loaded_path = path
    _loaded = library
    return library


def is_loaded() -> bool:
    """Whether the library is loaded by this package."""
    return _loaded is not None


def available() -> bool:
    """Whether the library is loaded, or can be. Tries once, and never raises."""
    global _load_failed
    if _loaded is None and not _load_failed:
        try:
            load()
        except LimboError:
            _load_failed = True
    return _loaded is not None


def _declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the signatures of hooks/capi.h."""
    text, number, number64 = ctypes.c_char_p, ctypes.c_int, ctypes.c_int64
    unsigned64 = ctypes.c_uint64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "limbo_last_error_code": (number, []),
        "limbo_last_error": (text, []),
        "limbo_error_name": (text, [number]),
        "limbo_version": (text, []),
        "limbo_torch_built_for": (text, []),
        "limbo_torch_usable": (number, []),
        "limbo_torch_enable": (
            number,
            [ctypes.POINTER(text), ctypes.POINTER(number64), number],
        ),
        "limbo_torch_installed": (number, []),
        "limbo_torch_make_allocator": (number, []),
        "limbo_torch_restore_allocator": (number, []),
        "limbo_set_option": (number, [text, number64]),
        "limbo_options_json": (text, []),
        "limbo_device_name": (text, []),
        "limbo_incarnation": (text, []),
        "limbo_holders_json": (text, []),
        "limbo_stats_json": (text, []),
        "limbo_devices_json": (text, []),
        "limbo_probes_json": (text, [number]),
        "limbo_reap": (number, [number, ctypes.POINTER(number64), ctypes.POINTER(number64)]),
        "limbo_drain_before_exit": (number, []),
        "limbo_keep_for_graph": (number, [number, ctypes.c_void_p, ctypes.POINTER(number)]),
        "limbo_announce_capture": (number, [number, ctypes.c_void_p, ctypes.POINTER(unsigned64)]),
        "limbo_withdraw_capture": (number, [unsigned64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


def last_error(library: ctypes.CDLL | None = None) -> LimboError:
    """The calling thread's last failure of a C function."""
    source = load() if library is None else library
    name: bytes = source.limbo_error_name(source.limbo_last_error_code())
    text: bytes = source.limbo_last_error()
    return LimboError(name.decode(), text.decode(errors="replace"))


def check(result: int) -> None:
    """Raise the last error unless a C function returned 0."""
    if result != 0:
        raise last_error()


def text_of(result: bytes | None) -> str:
    """A string of the C functions; raises the last error for null."""
    if result is None:
        raise last_error()
    return result.decode()


def json_of(result: bytes | None) -> Any:
    """The value of a JSON string of the C functions; raises the last error for null."""
    return json.loads(text_of(result))


def library_path() -> Path:
    """The path of the loaded library, for
    ``torch.cuda.memory.CUDAPluggableAllocator(path, "limbo_malloc", "limbo_free")``."""
    load()
    assert _loaded_path is not None
    return _loaded_path


def simulated() -> bool:
    """Whether this process works on the simulated device (LIMBO_DEVICE=simulated).

    Starts nothing; raises ``device_error`` where there is none.
    """
    global _device_name
    if _device_name is None:
        _device_name = text_of(load().limbo_device_name())
    return _device_name == "simulated"


def simulated_is_chosen() -> bool:
    """Like `simulated`, by the environment alone: makes nothing."""
    return os.environ.get("LIMBO_DEVICE") == "simulated"


def start_cuda() -> None:
    """What torch does before it touches a GPU: initialise CUDA, unless the device is simulated.

    Raises torch's own RuntimeError in a child that was forked after its parent had used CUDA.
    """
    if not simulated():
        torch.cuda.init()
