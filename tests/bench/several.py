#!/usr/bin/env python3
"""What two visible GPUs cost: allocations, and receiving over the link, beside torch's own ways.

    several.py [--json FILE] [--quick] [--bench PATH] [--sharing PATH]

Runs limbo_bench_allocator under Limbo and under torch's own allocator, limbo_bench's rows of the
link, and link_steps.py in both ways, each in a process of its own that sees the first two GPUs, and
prints one table. Needs two GPUs, a Python with torch, and a build (the newest under build/, unless
named). The exit status is 0 when everything worked; missing a budget is no error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from allocator import RESULT, Table, environment, newest, run

HERE = Path(__file__).resolve().parent
ALLOCATOR_ROWS = "pair-,threads-,training,gpus-,switch-,part-context,part-target"
LINK = {
    "link-first": "receive on the second GPU of the first one's memory, mapping it, from Python",
    "link-receive": "the same, mapped before",
    "link-receive-p99": "its 99th percentile",
    "link-release": "the end of what was received",
}
COUNT = "import torch; print(torch.cuda.device_count())"


def two_gpus() -> str:
    """What CUDA_VISIBLE_DEVICES has to be for the first two; SystemExit where there are fewer."""
    command = [sys.executable, "-W", "ignore", "-c", COUNT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    count = int(done.stdout.strip() or 0) if done.returncode == 0 else 0
    if count < 2:
        raise SystemExit(f"several.py needs two GPUs; torch sees {count}.")
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    return ",".join(names[:2])


class Several:
    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self.options, self.folder = options, folder
        self.table = Table()
        self.results: dict[str, Any] = {}
        self.failed = False
        self.visible = two_gpus()

    def values(self, backend: str) -> dict[str, str]:
        return {
            **environment(backend, "cuda", self.folder),
            "CUDA_VISIBLE_DEVICES": self.visible,
        }

    def quick(self) -> list[str]:
        return ["--quick"] if self.options.quick else []

    def fail(self, backend: str, what: str, why: str) -> None:
        self.failed = True
        self.table.miss(backend, what, why)

    def allocator(self, backend: str) -> None:
        program = self.options.bench or newest("limbo_bench_allocator")
        if program is None:
            self.fail(backend, "allocations", "there is no build with limbo_bench_allocator")
            return
        results = os.path.join(self.folder, f"{backend}.json")
        command = [str(program), "--backend", backend, "--device", "cuda", "--json", results]
        command += ["--only", ALLOCATOR_ROWS, *self.quick()]
        output, error = run(command, self.values(backend))
        print(output, flush=True)
        if error:
            self.fail(backend, "allocations", error)
            return
        rows = json.loads(Path(results).read_text(encoding="utf-8"))["rows"]
        self.results[f"allocator-{backend}"] = rows
        for each in rows:
            row = self.table.row(each["name"], each["what"], each["unit"], each["budget"])
            if each["value"] is not None:
                row.values[backend] = each["value"]

    def link_in_cpp(self) -> None:
        program = self.options.sharing or newest("limbo_bench")
        if program is None:
            self.fail("limbo", "the link in C++", "there is no build with limbo_bench")
            return
        results = os.path.join(self.folder, "link.json")
        command = [str(program), "--device", "cuda", "--only", "link", "--json", results]
        output, error = run([*command, *self.quick()], self.values("limbo"))
        print(output, flush=True)
        if error:
            self.fail("limbo", "the link in C++", error)
            return
        rows = json.loads(Path(results).read_text(encoding="utf-8"))["results"]
        self.results["link-cpp"] = rows
        for each in rows:
            budget = each.get("budget_ns")
            row = self.table.row(
                each["name"] + "-cpp",
                each["what"] + ", C++",
                "us",
                None if budget is None else budget / 1e3,
            )
            row.values["limbo"] = each["median_ns"] / 1e3

    def link(self, backend: str) -> None:
        way = "stock" if backend == "native" else "limbo"
        command = [sys.executable, "-W", "ignore", str(HERE / "link_steps.py"), way]
        output, error = run([*command, *self.quick()], self.values(backend))
        lines = [line for line in output.splitlines() if line.startswith(RESULT)]
        if error or not lines:
            self.fail(backend, "the link", error or "it printed no result")
            return
        measured = json.loads(lines[-1][len(RESULT) :])
        self.results[f"link-{way}"] = measured
        numbers = {
            "link-first": measured["first_us"],
            "link-receive": measured["receive"]["median_us"],
            "link-receive-p99": measured["receive"]["p99_us"],
            "link-release": measured["release"]["median_us"],
        }
        for name, value in numbers.items():
            self.table.row(name, LINK[name], "us").values[backend] = value
        self.table.row(
            "link-copy", "copying what was received to the reader's own memory", "GB/s"
        ).values[backend] = measured["copy_gb_per_s"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--json", help="a file for the results")
    parser.add_argument("--bench", type=Path, help="limbo_bench_allocator")
    parser.add_argument("--sharing", type=Path, help="limbo_bench")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="limbo-several-") as folder:
        several = Several(options, folder)
        for backend in ("limbo", "native"):
            several.allocator(backend)
            several.link(backend)
        several.link_in_cpp()
    print(f"\n{several.table.text(['limbo', 'native'])}\n")
    if options.json:
        results = {"quick": options.quick, "gpus": several.visible, **several.results}
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if several.failed else 0


if __name__ == "__main__":
    sys.exit(main())
