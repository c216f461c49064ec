#!/usr/bin/env python3
"""What an allocation costs: Limbo beside torch's own allocators, and the budgets.

    allocator.py [--json FILE] [--quick] [--device auto|cuda|simulated] [--backends NAMES]
                 [--bench PATH] [--replay PATH] [--trace FILE ...]

Runs limbo_bench_allocator, allocator_steps.py and limbo_replay once for each back end (limbo,
native, native-expandable, async: cudaMallocAsync, and rmm where it is installed), each in a process
of its own, one after the other on the same machine, and prints one table. What cannot run says why.
Needs a Python with torch and a build (the newest under build/, unless --bench, --replay and
LIMBO_LIBRARY name another). Without a GPU Limbo alone runs, on the simulated device.
The exit status is 0 when everything that can run here worked; missing a budget is no error.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULT = "RESULT "
SECONDS = 300  # for one program; it takes a fifth of that
BACKENDS = ("limbo", "native", "native-expandable", "async", "rmm")
SETTINGS = {
    "native-expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
STEPS = {
    "torch-empty": ('torch.empty(1024, device="cuda") and its end', "ns"),
    "torch-empty-later": ("the same after the training steps", "ns"),
    "cpu-empty": ("torch.empty(1024) on the CPU: how fast the host was then", "ns"),
    "cpu-empty-later": ("the same after the training steps", "ns"),
    "pair-in-python": ("raw_alloc and raw_delete of 4 KiB, called by C++ in that process", "ns"),
    "step-tiny": ("training step, 100 tiny layers (bound by the host)", "ms"),
    "step-large": ("training step, a large transformer block", "ms"),
    "reserved-mib": ("the most reserved by these", "MiB"),
}


@dataclass
class Row:
    """A line of the table: one measurement of every back end, or why there is none."""

    name: str
    what: str
    unit: str
    budget: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        value = self.values.get("limbo")
        if self.budget is None or value is None:
            return None
        return value >= self.budget if self.unit == "M/s" else value <= self.budget


class Table:
    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.notes: list[str] = []  # what could not run, and why

    def row(self, name: str, what: str, unit: str, budget: float | None = None) -> Row:
        made = self.rows.setdefault(name, Row(name, what, unit))
        made.budget = made.budget if budget is None else budget
        return made

    def miss(self, backend: str, what: str, why: str) -> None:
        note = f"{backend}: {what} not measured: {why}"
        if note not in self.notes:
            self.notes.append(note)

    def text(self, backends: list[str]) -> str:
        lines = [["row", "unit", *backends, "budget", "met", "what"]]
        for row in self.rows.values():
            values = [number(row.values[b]) if b in row.values else "-" for b in backends]
            met = {None: "", True: "yes", False: "NO"}[row.met]
            budget = "" if row.budget is None else number(row.budget)
            lines.append([row.name, row.unit, *values, budget, met, row.what])
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        text = [
            "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
            for line in lines
        ]
        text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(text + [f"# {note}" for note in self.notes])


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# ---- running -----------------------------------------------------------------------------------


def newest(name: str) -> Path | None:
    built = [*ROOT.glob(f"build/*/tests/{name}"), *ROOT.glob(f"build/tests/{name}")]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def gpu_is_there() -> bool:
    code = "import torch; torch.ones(1, device='cuda')"
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def environment(backend: str, device: str, folder: str) -> dict[str, str]:
    path = [str(ROOT / "python_shim"), os.environ.get("PYTHONPATH", "")]
    runtime = os.path.join(folder, "run")
    os.makedirs(runtime, 0o700, exist_ok=True)
    values = {
        **os.environ,
        "LIMBO_DEVICE": device,
        "LIMBO_RUNTIME_DIR": runtime,
        "LIMBO_SIM_MACHINE": os.path.join(folder, "machine"),
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
    }
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        values.pop(name, None)
    if backend in SETTINGS:
        values["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[backend]
    return values


def run(command: list[str], values: dict[str, str]) -> tuple[str, str]:
    """What a program printed, and why it failed ("" when it did not)."""
    print(f"# {' '.join(command)}", flush=True)
    try:
        done = subprocess.run(
            command,
            env=values,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"it took more than {SECONDS} s"
    if done.returncode == 0:
        return done.stdout, ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    print(done.stderr, flush=True)
    return done.stdout, lines[-1] if lines else f"exit status {done.returncode}"


class Runner:
    def __init__(self, options: argparse.Namespace, device: str, folder: str) -> None:
        self.options, self.device, self.folder = options, device, folder
        self.table = Table()
        self.failed = False

    def quick(self) -> list[str]:
        return ["--quick"] if self.options.quick else []

    def fail(self, backend: str, what: str, why: str) -> None:
        self.failed = True
        self.table.miss(backend, what, why)

    def run(self, backend: str, first: bool) -> None:
        if backend == "rmm" and importlib.util.find_spec("rmm") is None:
            self.table.miss(backend, "everything", "RMM is not installed (pip install rmm-cu13)")
            return
        if self.device == "simulated" and backend != "limbo":
            self.table.miss(backend, "everything", "it needs a GPU")
            return
        for part in (self.calls, self.steps, self.replay) if first else (self.steps,):
            try:
                part(backend)
            except (
                OSError,
                KeyError,
                TypeError,
                ValueError,
            ) as error:  # the others' rows are still shown
                self.fail(backend, part.__name__, f"its results are not understood: {error!r}")

    def calls(self, backend: str) -> None:
        """Pairs, threads, live sets: in C++."""
        program = self.options.bench or newest("limbo_bench_allocator")
        if program is None:
            self.fail(backend, "C++ rows", "there is no build with limbo_bench_allocator")
            return
        results = os.path.join(self.folder, f"{backend}.json")
        arguments = ["--device", self.device, "--json", results, *self.quick()]
        command = [str(program), "--backend", backend, *arguments]
        if backend == "rmm":  # it lives in Python
            inside = str(HERE / "allocator_in_python.py")
            library = str(program.parent / "liblimbo_allocator_bench.so")
            command = [sys.executable, inside, library, *arguments]
        output, error = run(command, environment(backend, self.device, self.folder))
        print(output, flush=True)
        if error:
            self.fail(backend, "C++ rows", error)
            return
        for each in json.loads(Path(results).read_text(encoding="utf-8"))["rows"]:
            row = self.table.row(each["name"], each["what"], each["unit"], each["budget"])
            if each["value"] is not None:
                row.values[backend] = each["value"]
            else:
                row.missing[backend] = each["skipped"]
                self.table.miss(backend, each["name"], each["skipped"])

    def steps(self, backend: str) -> None:
        """torch.empty and training steps: in Python."""
        if self.device == "simulated":
            self.table.miss(backend, ", ".join(STEPS), "it needs a GPU")
            return
        command = [sys.executable, str(HERE / "allocator_steps.py"), backend, *self.quick()]
        program = self.options.bench or newest("limbo_bench_allocator")
        if program is not None:
            command += ["--library", str(program.parent / "liblimbo_allocator_bench.so")]
        output, error = run(command, environment(backend, self.device, self.folder))
        lines = [line for line in output.splitlines() if line.startswith(RESULT)]
        measured = json.loads(lines[-1][len(RESULT) :]) if lines else {}
        if error or not lines:
            lacking = [name for name in STEPS if name not in measured]
            self.fail(backend, ", ".join(lacking), error or "it printed no result")
        for name, (what, unit) in STEPS.items():
            row = self.table.row(name, what, unit)
            if name in measured:  # the best of the rounds
                row.values[backend] = min(measured[name], row.values.get(backend, measured[name]))

    def replay(self, backend: str) -> None:
        """The recorded traces."""
        program = self.options.replay or newest("limbo_replay")
        if backend not in ("limbo", "native"):
            self.table.miss(backend, "replay", "limbo_replay replays with limbo and native")
            return
        if program is None:
            self.table.miss(backend, "replay", "there is no build with limbo_replay")
            return
        traces = self.options.trace or sorted((ROOT / "tests" / "data" / "traces").glob("*.trace*"))
        command = [str(program), "--device", self.device, "--backend", backend, "--json"]
        output, error = run(
            [*command, *map(str, traces)], environment(backend, self.device, self.folder)
        )
        if error:
            self.fail(backend, "replay", error)
            return
        for line in output.splitlines():  # one object each
            each = json.loads(line)
            name = f"replay-{Path(each['trace']).name.split('.')[0]}"
            time = self.table.row(name, "replay of a recorded trace, an event", "ns")
            time.values[backend] = each["ns_per_event"]
            peak = self.table.row(name + "-peak", "the most reserved in it", "MiB")
            peak.values[backend] = each["reserved_bytes"] / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cuda", "simulated"), default="auto")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="which, with commas")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--json", help="a file for the results")
    parser.add_argument("--bench", type=Path, help="limbo_bench_allocator")
    parser.add_argument("--replay", type=Path, help="limbo_replay")
    parser.add_argument(
        "--trace", action="append", help="a trace to replay instead of tests/data/traces"
    )
    options = parser.parse_args()
    backends = options.backends.split(",")
    for backend in backends:
        if backend not in BACKENDS:
            parser.error(f"There is no back end {backend!r}; there are {', '.join(BACKENDS)}.")
    device = options.device
    if device == "auto":
        device = "cuda" if gpu_is_there() else "simulated"
    with tempfile.TemporaryDirectory(prefix="limbo-allocator-") as folder:
        runner = Runner(options, device, folder)
        # Programs in Python once more in the opposite order: a host that is busy for a while is not
        # one back end's bad luck.
        for backend in backends:
            runner.run(backend, first=True)
        if device == "cuda" and not options.quick:
            for backend in reversed(backends):
                runner.run(backend, first=False)
    table = runner.table
    print(f"\n{table.text(backends)}\n")
    if device != "cuda":
        print("Times of the simulated device say nothing about torch's stream and device.")
    if options.json:
        rows = [{**asdict(row), "met": row.met} for row in table.rows.values()]
        results = {"device": device, "quick": options.quick, "rows": rows, "notes": table.notes}
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
