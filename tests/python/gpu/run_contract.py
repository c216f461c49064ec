#!/usr/bin/env python3
"""Run the allocator's contract tests under Limbo and under torch's own allocator, and compare.

    run_contract.py [--only limbo|native] [-k EXPRESSION] [FILE...]

Needs a GPU. Each allocator has a process of its own; where a test ends that process (a crash, a
test that hangs, an error that spoils CUDA), the test is named and the run goes on behind it. What
fails under native as well says more about the test than about Limbo. Exit code 1 if anything failed
under Limbo.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LINE = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b")
REASON = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?) - (.+)$")
TEST_SECONDS = 120

Outcomes = dict[str, str]

#: Why tests failed, in a few words, by (allocator is native, test).
reasons: dict[tuple[bool, str], str] = {}


def pytest_command(*arguments: str) -> list[str]:
    return [sys.executable, "-u", "-m", "pytest", "-p", "no:cacheprovider", *arguments]


def environment(native: bool) -> dict[str, str]:
    return {
        **os.environ,
        "LIMBO_DEVICE": "cuda",
        "LIMBO_TESTS_NATIVE": "1" if native else "0",
        "PYTHONFAULTHANDLER": "1",
    }


def collect(files: list[str], expression: str) -> list[str]:
    """The names of all tests."""
    done = subprocess.run(
        pytest_command("--collect-only", "-q", *(["-k", expression] if expression else []), *files),
        capture_output=True,
        text=True,
        check=False,
        env=environment(True),
        cwd=ROOT,
    )
    names = [line for line in done.stdout.splitlines() if "::" in line]
    if not names:
        raise SystemExit(f"no tests were found:\n{done.stdout}{done.stderr}")
    return names


def run_some(names: list[str], native: bool, log: Path) -> Outcomes:
    """One process for these tests, as far as it comes; its output is added to `log`."""
    process = subprocess.Popen(
        # -vv: why a test failed stands whole in the summary.
        pytest_command("-vv", "-rfE", "--tb=short", f"--timeout={TEST_SECONDS}", *names),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(native),
        cwd=ROOT,
    )
    assert process.stdout is not None
    outcomes: Outcomes = {}
    with log.open("a") as kept:
        for line in process.stdout:
            kept.write(line)
            found = LINE.match(line)
            # A test that passed and whose clean-up failed has two lines; the worse one counts.
            if found and outcomes.get(found[1]) != "FAILED":
                outcomes[found[1]] = found[2]
            reason = REASON.match(line)
            if reason:
                reasons[native, reason[1]] = reason[2]
        code = process.wait()
        kept.write(f"--- exit code {code}\n")
    return outcomes


def run_all(names: list[str], native: bool, log: Path) -> Outcomes:
    log.unlink(missing_ok=True)
    outcomes: Outcomes = {}
    left = list(names)
    while left:
        outcomes.update(run_some(left, native, log))
        behind = [name for name in left if name not in outcomes]
        if behind and len(behind) == len(left):
            outcomes[behind[0]] = "ENDED THE PROCESS"
            behind = behind[1:]
        elif behind:
            # The process ended in the first test that has no outcome, or in the clean-up of the
            # last that has one.
            first = names.index(behind[0])
            if outcomes.get(names[first - 1]) == "FAILED":
                outcomes[names[first - 1]] = "FAILED, ENDED THE PROCESS"
            else:
                outcomes[behind[0]] = "ENDED THE PROCESS"
                behind = behind[1:]
        left = behind
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=["limbo", "native"])
    parser.add_argument("-k", dest="expression", default="")
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    files = [str(Path(name).resolve()) for name in options.files] or sorted(
        str(path) for path in HERE.glob("test_allocator_contract_*.py")
    )
    names = collect(files, options.expression)
    results: dict[str, Outcomes] = {}
    for allocator in ("limbo", "native"):
        if options.only not in (None, allocator):
            continue
        start = time.monotonic()
        log = options.logs / f"contract-{allocator}.log"
        results[allocator] = run_all(names, allocator == "native", log)
        counts: dict[str, int] = {}
        for outcome in results[allocator].values():
            counts[outcome] = counts.get(outcome, 0) + 1
        seconds = time.monotonic() - start
        print(f"{allocator}: {counts} of {len(names)} in {seconds:.0f} s; output in {log}")
    for name in names:
        outcomes = [results[allocator].get(name, "NOT RUN") for allocator in results]
        if any(outcome != "PASSED" for outcome in outcomes):
            print("  ".join(f"{outcome:8}" for outcome in outcomes), name)
            for native in (False, True):
                if (native, name) in reasons:
                    print(f"    {'native' if native else 'limbo'}: {reasons[native, name]}")
    bad = [each for each in results.get("limbo", {}).values() if each not in ("PASSED", "SKIPPED")]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
