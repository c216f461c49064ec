#!/usr/bin/env python3
"""The table of budgets: torch's own sharing, Limbo, what Limbo may cost, and whether it does.

    budgets.py [--device auto|cuda|simulated] [--quick] [--json FILE] [--bench PATH]

Runs limbo_bench, then python_sharing.py with torch's own way and with Limbo, each in a process of
its own, one after the other on the same machine, and puts their numbers side by side. On a GPU they
go once more in the opposite order, and the quicker median of each row counts: for seconds at a time
a host can be half as fast. Needs a Python with torch, and a build (the newest under build/, unless
--bench and LIMBO_LIBRARY name another).
The exit status is 0 when everything worked; missing a budget is no error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULT = "RESULT "
PYTHON_SECONDS = 240  # for each way; it takes a quarter of that
TWICE = "share,send,receive,release"  # of limbo_bench: the others are long, and far from a budget

Times = dict[str, Any]  # of one row, or of a program by row


@dataclass
class Row:
    """A line of the table. Times are medians, in microseconds."""

    what: str
    stock: str
    limbo: str
    limbo_us: float | None = None
    budget_us: float | None = None
    valid: bool = True

    @property
    def met(self) -> str:
        if self.budget_us is None or self.limbo_us is None:
            return ""
        if not self.valid:
            return "?"
        return "yes" if self.limbo_us <= self.budget_us else "NO"


# ---- running -----------------------------------------------------------------------------------


def newest_bench() -> Path:
    built = list(ROOT.glob("build/*/tests/limbo_bench")) + list(
        ROOT.glob("build/tests/limbo_bench")
    )
    if not built:
        raise SystemExit("There is no build with limbo_bench under build/; name one by --bench.")
    return max(built, key=lambda path: path.stat().st_mtime)


def gpu_is_there() -> bool:
    code = "import torch; torch.ones(1, device='cuda')"
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def environment(device: str, folder: str) -> dict[str, str]:
    """A runtime directory and a simulated machine of one's own, and the package on the path."""
    runtime = os.path.join(folder, "run")
    os.makedirs(runtime, 0o700, exist_ok=True)
    path = [str(ROOT / "python_shim"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "LIMBO_DEVICE": device,
        "LIMBO_RUNTIME_DIR": runtime,
        "LIMBO_SIM_MACHINE": os.path.join(folder, "machine"),
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
    }


def run_bench(bench: Path, device: str, folder: str, more: list[str]) -> tuple[Times, bool]:
    """What limbo_bench measured, and whether all of it worked."""
    results = os.path.join(folder, "bench.json")
    command = [str(bench), "--device", device, "--json", results, *more]
    print(f"# {' '.join(command)}", flush=True)
    Path(results).unlink(missing_ok=True)
    done = subprocess.run(command, check=False)
    if not os.path.exists(results):
        raise SystemExit(f"limbo_bench failed ({done.returncode}).")
    with open(results, encoding="utf-8") as file:
        return dict(json.load(file)), done.returncode == 0


def run_python(way: str, device: str, quick: bool, folder: str) -> Times | None:
    """What python_sharing.py measured; None when it failed, which is said."""
    command = [sys.executable, str(HERE / "python_sharing.py"), way]
    command += ["--simulated"] if device == "simulated" else []
    command += ["--quick"] if quick else []
    print(f"# {' '.join(command)}", flush=True)
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        env=environment(device, folder),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PYTHON_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its receiver too
        output, _ = process.communicate()
    lines = [line for line in output.splitlines() if line.startswith(RESULT)]
    print(f"# {time.monotonic() - start:.1f} s, exit status {process.returncode}", flush=True)
    if process.returncode != 0 or not lines:
        print(f"python_sharing.py {way} FAILED\n{output}", flush=True)
        return None
    return dict(json.loads(lines[-1][len(RESULT) :]))


def quicker(first: Times, second: Times, median: str) -> Times:
    """Of two measurements of the same rows, by name, those with the lower median. What was not
    measured twice is the first's."""

    def rank(times: Any) -> tuple[bool, float]:
        if not isinstance(times, dict) or median not in times:
            return (True, 0.0)
        invalid = times.get("invalid") or not times.get("busy_at_the_end", True)
        return (bool(invalid), times[median])

    return {
        name: min((times, second[name]), key=rank) if name in second else times
        for name, times in first.items()
    }


class Measured:
    """What the programs said."""

    def __init__(self, bench: Path, device: str, quick: bool, folder: str) -> None:
        self.device, self.quick, self.folder = device, quick, folder
        sizes = ["--quick"] if quick else []
        said, self.worked = run_bench(bench, device, folder, sizes)
        self.machine = said["machine"]
        self.bench: Times = {each["name"]: each for each in said["results"]}
        self.stock = self.run_way("stock") if device == "cuda" else None
        self.limbo = self.run_way("limbo")
        if device != "cuda" or quick:
            return
        self.limbo = self.again("limbo", self.limbo)
        self.stock = self.again("stock", self.stock)
        said, worked = run_bench(bench, device, folder, ["--only", TWICE])
        self.worked = self.worked and worked
        more = {each["name"]: each for each in said["results"]}
        self.bench = quicker(self.bench, more, "median_ns")

    def run_way(self, way: str) -> Times | None:
        measured = run_python(way, self.device, self.quick, self.folder)
        self.worked = self.worked and measured is not None
        return measured

    def again(self, way: str, first: Times | None) -> Times | None:
        second = self.run_way(way)
        return first and second and quicker(first, second, "median_us")


# ---- the table ---------------------------------------------------------------------------------


def us(value: float) -> str:
    return f"{value:,.0f} us" if value >= 100 else f"{value:.2f} us"


def with_longest(times: Times | None, remark: str = "") -> str:
    if times is None:
        return "-"
    return f"{us(times['median_us'])}, longest {us(times['longest_us'])}{remark}"


class Table:
    def __init__(self, measured: Measured) -> None:
        self.bench = measured.bench
        self.stock, self.limbo = measured.stock or {}, measured.limbo or {}
        self.rows: list[Row] = []

    def core(self, name: str, what: str, stock: str, longest: bool = False) -> None:
        """A row of limbo_bench."""
        measured = self.bench.get(name)
        if measured is None:
            return
        median = measured["median_ns"] / 1e3
        text = us(median)
        if longest:
            text += f", longest {us(measured['longest_ns'] / 1e3)}"
        budget = measured.get("budget_ns")
        self.rows.append(
            Row(
                what,
                stock,
                text,
                median,
                None if budget is None else budget / 1e3,
                not measured["invalid"],
            )
        )

    def python(self, name: str, what: str, budget_us: float | None = None) -> None:
        """A row of python_sharing.py, both ways."""
        measured = self.limbo.get(name)
        if measured is None:
            return
        self.rows.append(
            Row(
                what,
                with_longest(self.stock.get(name)),
                with_longest(measured),
                measured["median_us"],
                budget_us,
                measured.get("busy_at_the_end", True),
            )
        )

    def stock_median(self, name: str, call: str) -> str:
        times = self.stock.get(name)
        return "-" if times is None else f"{us(times['median_us'])} ({call})"

    def fill(self) -> None:
        stock = self.stock
        collect = stock.get("collect")
        self.core(
            "share-known",
            "share, known piece, C++",
            self.stock_median("share_cuda", "_share_cuda_"),
        )
        self.python("dumps", "ForkingPickler.dumps of a tensor")
        self.core(
            "receive-known",
            "receive, known piece, C++",
            self.stock_median("new_shared_cuda", "_new_shared_cuda"),
        )
        self.python("loads", "ForkingPickler.loads of one message", 25)
        self.python("queue", "mp.Queue put and get, each, 64 tensors in rotation", 60)
        self.python("queue_one_at_a_time", "mp.Queue, one message: from put until got")
        self.python("queue_of_none", "mp.Queue, the same with None: the queue's own")
        self.core("release-idle", "release, C++", "-")
        self.python("release_idle", "del of a received tensor")
        self.core(
            "release-behind-work",
            "release behind a kernel, 5,000 on one stream, C++",
            with_longest(stock.get("release_behind_work"), " (del, 300)"),
            longest=True,
        )
        self.core("release-behind-work-last", "the last of these alone", "-")
        self.python("release_behind_work", "del of a received tensor behind a kernel")
        self.core(
            "send-behind-work",
            "send behind a kernel, 10,000 earlier ones unreleased, C++",
            with_longest(stock.get("send_behind_work")) + " (dumps, 1,100 earlier)"
            if stock
            else "-",
            longest=True,
        )
        self.python("send_behind_work", "dumps of a tensor there")
        at_8000 = f"{us(collect['median_us'])} (8,000)" if collect else "-"
        self.core("collect-100000", "collect, nothing changed, 100,000 in limbo, C++", at_8000)
        self.core("collect-8000", "collect, nothing changed, 8,000 in limbo, C++", at_8000)
        self.python("collect", "torch_limbo.collect / torch.cuda.ipc_collect, 8,000 in limbo")
        kill = stock.get("kill")
        never = "-" if kill is None else ("back" if kill["back"] else "never (3 s waited)")
        self.core("kill-idle-after-end", "killed consumer's memory, from its end", never)
        self.core("kill-kernel-after-end", "the same, under a running kernel", never)
        self.core("kill-kernel", "the same, from the kill", never)

    def text(self) -> str:
        cells = [("what", "stock", "Limbo", "budget", "met")]
        for row in self.rows:
            budget = "" if row.budget_us is None else us(row.budget_us)
            cells.append((row.what, row.stock, row.limbo, budget, row.met))
        widths = [max(len(line[column]) for line in cells) for column in range(5)]
        lines = []
        for line in cells:
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            lines.append("| " + " | ".join(padded) + " |")
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cuda", "simulated"), default="auto")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--json", help="a file for the results")
    parser.add_argument("--bench", type=Path, help="limbo_bench")
    options = parser.parse_args()
    device = options.device
    if device == "auto":
        device = "cuda" if gpu_is_there() else "simulated"
    with tempfile.TemporaryDirectory(prefix="limbo-budgets-") as folder:
        program = options.bench or newest_bench()
        measured = Measured(program, device, options.quick, folder)
    table = Table(measured)
    table.fill()
    print(f"\n{table.text()}\n")
    stock = measured.stock
    if stock is not None:
        print(
            f"Of torch's sends while {stock['send_behind_work']['unreleased']:,} earlier ones were "
            f"unreleased, {stock['sends_with_an_event']} in 10 had an event; the others wait for "
            "their stream."
        )
    elif device != "cuda":
        print("Torch's own way needs a GPU; times of the simulated device mean nothing.")
    if options.json:
        results = {
            "device": device,
            "quick": options.quick,
            "machine": measured.machine,
            "table": [{**asdict(row), "met": row.met} for row in table.rows],
            "limbo_bench": list(measured.bench.values()),
            "python_stock": measured.stock,
            "python_limbo": measured.limbo,
        }
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if measured.worked else 1


if __name__ == "__main__":
    sys.exit(main())
