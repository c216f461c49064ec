#!/usr/bin/env python3
"""Check that every file includes only what its layer may include.

allocator/device <- allocator <- ipc <- hooks <- python_shim: each layer includes only those under
it. CUDA's headers appear only in allocator/device (and in hooks, where torch's need the runtime's),
torch's only in hooks, and nothing outside tests/ includes tests/.

    check_layers.py [ROOT]

Prints `file:line: reason` for each offence; exit code 1 if there is one.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# What each layer may include of the project's own folders; the longest matching folder counts.
ALLOWED: dict[str, tuple[str, ...]] = {
    "allocator/device": ("allocator/device", "allocator/error.h", "allocator/options.h"),
    "allocator": ("allocator",),
    "ipc": ("allocator", "ipc"),
    "hooks": ("allocator", "ipc", "hooks"),
    "tests": ("allocator", "ipc", "hooks", "tests"),
}
OWN_FOLDERS = ("allocator", "ipc", "hooks", "python_shim", "tests")

TORCH = re.compile(r"^(c10|torch|ATen|caffe2|pybind11)/|^Python\.h$")
CUDA = re.compile(r"^(cuda|cu[a-z]*\.h|nvrtc|nvml|nvtx|driver_types\.h|crt/|cooperative_groups)")
MAY_INCLUDE_TORCH = ("hooks", "tests")
MAY_INCLUDE_CUDA = ("allocator/device", "hooks", "tests")

INCLUDE = re.compile(r'^\s*#\s*include(?:_next)?\s*([<"])([^>"]+)[>"]')
IMPORT = re.compile(r"^\s*(?:import|from)\s+tests\b")
CPP_SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh", ".inc"}


def layer_of(path: str) -> str | None:
    folders = [folder for folder in ALLOWED if path.startswith(folder + "/")]
    return max(folders, key=len, default=None)


def offence(layer: str, mark: str, header: str) -> str | None:
    """Why a file of `layer` may not include `header`, or None."""
    if header.split("/")[0] in OWN_FOLDERS and "/" in header:
        for allowed in ALLOWED[layer]:
            if header == allowed or header.startswith(allowed + "/"):
                return None
        return f"{layer}/ may not include {header}"
    if TORCH.match(header):
        return None if layer in MAY_INCLUDE_TORCH else f"only hooks/ includes torch: {header}"
    if CUDA.match(header):
        if layer in MAY_INCLUDE_CUDA:
            return None
        return f"only allocator/device/ includes CUDA: {header}"
    if mark == '"' and layer != "tests":
        return f'write own headers by their path from the root: "{header}"'
    return None


def offences(root: Path) -> Iterator[str]:
    for folder in OWN_FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root).as_posix()
            layer = layer_of(path)
            if file.suffix in CPP_SUFFIXES and layer is None:
                yield f"{path}:1: C++ does not belong into {folder}/"
            elif file.suffix in CPP_SUFFIXES or (file.suffix == ".py" and folder != "tests"):
                for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                    reason = None
                    if file.suffix == ".py":
                        if IMPORT.match(line):
                            reason = f"{folder}/ may not import tests"
                    elif (match := INCLUDE.match(line)) and layer is not None:
                        reason = offence(layer, match.group(1), match.group(2))
                    if reason is not None:
                        yield f"{path}:{number}: {reason}"


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    if not (root / "allocator").is_dir():
        print(f"{root} is not the project's root: it has no folder allocator/", file=sys.stderr)
        return 2
    found = list(offences(root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
