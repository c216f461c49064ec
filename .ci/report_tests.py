#!/usr/bin/env python3
"""Say what the last test runs of one or more build folders came to.

    report_tests.py BUILD_FOLDER...

Reads what `ctest --output-junit Testing/ctest.xml` wrote in each, with the cases of pytest
(Testing/pytest/<entry>.xml) or of GoogleTest (Testing/gtest/<entry>.xml) in the place of a ctest
entry that ran several. Prints every skipped and
every failed test by name, then `N passed, N failed, N skipped`. Exit code 1 if a test failed, 2 if
there is nothing to read.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    name: str
    outcome: str  # passed, failed or skipped
    reason: str = ""


def skip_reason(output: str) -> str:
    """The text that GoogleTest or pytest printed for a skip, or what ctest ran instead."""
    gtest = re.search(r": Skipped\n(.*?)\n*(?:\n\[|\Z)", output, re.DOTALL)
    if gtest:
        return " ".join(gtest.group(1).split())
    pytest = re.search(r"^SKIPPED \[\d+\] (.*)$", output, re.MULTILINE)
    if pytest:
        return pytest.group(1)
    not_run = re.search(r"^not run: (.*)$", output, re.MULTILINE)
    if not_run:
        return not_run.group(1)
    program = re.search(r"There is no CUDA device.*", output)
    return program.group(0) if program else ""


def case_results(entry: str, file: Path) -> list[Result]:
    """What pytest or GoogleTest wrote about the cases of one entry."""
    results = []
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if file.parent.name == "gtest":
            name = f"{entry}::{case.get('classname')}.{case.get('name')}"
            # The reason stands after the place, on a line of its own.
            reason = " ".join((skipped.text or "").split("\n")[1:]) if skipped is not None else ""
            disabled = case.get("status") == "notrun"
        else:
            name = f"{entry}::{case.get('name')}"
            reason = (skipped.get("message") or "") if skipped is not None else ""
            disabled = False
        if case.find("failure") is not None or case.find("error") is not None:
            results.append(Result(name, "failed"))
        elif skipped is not None or disabled:
            results.append(Result(name, "skipped", "disabled" if disabled else reason.strip()))
        else:
            results.append(Result(name, "passed"))
    return results


def results_of(build: Path) -> list[Result]:
    results = []
    for case in ElementTree.parse(build / "Testing" / "ctest.xml").getroot().iter("testcase"):
        name = case.get("name") or "?"
        output = case.findtext("system-out") or ""
        outcome = {"run": "passed", "fail": "failed"}.get(case.get("status") or "", "skipped")
        cases: list[Result] = []
        for kind in ("pytest", "gtest"):
            file = build / "Testing" / kind / f"{name}.xml"
            if outcome != "skipped" and file.is_file():
                cases = case_results(name, file)
        # It may have ended before it could write: then the entry's own outcome is what counts.
        if cases and (outcome == "failed") == any(case.outcome == "failed" for case in cases):
            results += cases
        else:
            results.append(Result(name, outcome, skip_reason(output)))
    return results


def main() -> int:
    builds = [Path(argument) for argument in sys.argv[1:]]
    if not builds:
        print(__doc__, file=sys.stderr)
        return 2
    results = []
    for build in builds:
        try:
            found = results_of(build)
        except (OSError, ElementTree.ParseError) as error:
            print(f"{build} has no report of a test run: {error}", file=sys.stderr)
            return 2
        label = f"{build.name}/" if len(builds) > 1 else ""
        results += [Result(label + one.name, one.outcome, one.reason) for one in found]
    count = {}
    for outcome in ("passed", "skipped", "failed"):
        chosen = [result for result in results if result.outcome == outcome]
        count[outcome] = len(chosen)
        if chosen and outcome != "passed":
            print(f"{outcome}:")
            for result in chosen:
                print(f"  {result.name}" + (f": {result.reason}" if result.reason else ""))
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
