#!/usr/bin/env python3
"""Run the single-process GPU suites under NVIDIA's compute-sanitizer.

    sanitize.py [--build BUILD_FOLDER] [--tool memcheck] [--only gpu|python] [--sanitizer PROGRAM]

Looks for writes and reads of GPU memory that nobody owns (memcheck; another --tool is handed on),
in limbo_gpu_tests and in the tests of torch's allocator contract under Limbo. compute-sanitizer is
taken from --sanitizer, PATH, the CUDA toolkit, or NVIDIA's package for this Python's CUDA, which is
installed into the build folder where it is missing. Tests of what happens while a stream is busy
are left out: there no call returns before its kernel is over.

Exit code 0: nothing was found; 1: something was found or failed; 77: there is no GPU, or no
compute-sanitizer to be had.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOUND_SOMETHING = 86
SKIPPED = 77
#: For the major version of CUDA that torch 2.11 brings, which lacks it. (In the package of its own
#: release, 13.0.85, a program that compute-sanitizer starts is missing.)
PACKAGE = "nvidia-cuda-sanitizer-api==13.5.25"

#: Without those that fill the device to its end, compile, or start processes of their own.
PYTHON_SUITES = (
    "numbers",
    "raw",
    "record_stream",
    "graphs",
    "captures",
    "pools",
    "pool_allocators",
    "checkpoints",
)


def python_of(build: Path) -> str:
    named = build / "limbo-python.txt"
    return named.read_text().strip() if named.is_file() else sys.executable


def find_sanitizer(named: Path | None, build: Path) -> Path | None:
    """The program, installed into the build folder if need be; None if it cannot be had."""
    if named is not None:
        return named
    in_path = shutil.which("compute-sanitizer")
    if in_path:
        return Path(in_path)
    folder = build / "compute-sanitizer"
    candidates = [
        *sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer")),
        *sorted(Path("/usr/local").glob("cuda*/compute-sanitizer/compute-sanitizer")),
        folder / "nvidia" / "cu13" / "bin" / "compute-sanitizer",
    ]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    print(f"installing {PACKAGE} into {folder}", flush=True)
    command = [python_of(build), "-m", "pip", "install", "--quiet", "--no-deps"]
    done = subprocess.run([*command, "--target", str(folder), PACKAGE], check=False)
    return candidates[-1] if done.returncode == 0 and candidates[-1].is_file() else None


def suites(build: Path, only: str | None) -> dict[str, list[str]]:
    """The commands, by name."""
    commands: dict[str, list[str]] = {}
    program = build / "tests" / "limbo_gpu_tests"
    if only != "python":
        commands["gpu"] = [str(program)]
    if only != "gpu":
        files = [
            str(ROOT / "tests" / "python" / "gpu" / f"test_allocator_contract_{name}.py")
            for name in PYTHON_SUITES
        ]
        for name, file in zip(PYTHON_SUITES, files, strict=True):
            commands[f"python {name}"] = [
                python_of(build),
                *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "300", file),
            ]
    return commands


def run(sanitizer: Path, tool: str, build: Path, name: str, command: list[str]) -> bool:
    """Whether nothing was found. What was printed stays in the build folder."""
    log = build / "compute-sanitizer-logs" / f"{name.replace(' ', '-')}.txt"
    log.parent.mkdir(exist_ok=True)
    options = [
        *("--tool", tool),
        *("--error-exitcode", str(FOUND_SOMETHING)),
        # The tests make calls that have to fail, and look at how.
        *(("--report-api-errors", "no") if tool == "memcheck" else ()),
    ]
    environment = {**os.environ, "LIMBO_DEVICE": "cuda", "LIMBO_TESTS_SERIAL": "1"}
    environment.setdefault("LIMBO_LIBRARY", str(build / "hooks" / "libtorch_limbo.so"))
    start = time.monotonic()
    with log.open("w") as output:
        done = subprocess.run(
            [str(sanitizer), *options, *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            check=False,
        )
    text = log.read_text(errors="replace")
    summary = re.findall(r"^=+ ERROR SUMMARY: .*$", text, re.MULTILINE)
    last = [line for line in text.splitlines() if re.search(r"passed|failed|PASSED|FAILED", line)]
    seconds = time.monotonic() - start
    print(f"{name}: exit code {done.returncode}, {seconds:.0f} s; {summary[-1:]} {last[-1:]}")
    if done.returncode != 0:
        print("\n".join(text.splitlines()[-40:]))
    sys.stdout.flush()
    return done.returncode == 0 and bool(summary)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--tool", default="memcheck")
    parser.add_argument("--only", choices=["gpu", "python"])
    parser.add_argument("--sanitizer", type=Path)
    options = parser.parse_args()
    build = options.build.resolve()
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists():
        print("not run: there is no GPU")
        return SKIPPED
    sanitizer = find_sanitizer(options.sanitizer, build)
    if sanitizer is None:
        print("not run: there is no compute-sanitizer, and it could not be installed (no network?)")
        return SKIPPED
    clean = [
        run(sanitizer, options.tool, build, name, command)
        for name, command in suites(build, options.only).items()
    ]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
