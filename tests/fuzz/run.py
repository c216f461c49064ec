#!/usr/bin/env python3
"""Run the fuzz targets of a build and say what they did.

    run.py [--build BUILD_FOLDER] [--seconds N] [--jobs N] [TARGET...]

Each target runs for N seconds (20), as many side by side as --jobs says (as there are cores), from
the kept inputs in seeds/. Inputs that it finds worth keeping go to BUILD_FOLDER/fuzz/TARGET/corpus
and are started from the next time; those that break a rule to BUILD_FOLDER/fuzz/TARGET/broken. Exit
code 1 if there is any.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOST_INPUT_BYTES = 1024


def run(program: Path, folder: Path, seconds: int) -> tuple[bool, str]:
    """Whether the target broke no rule, and a line that says what was done."""
    target = program.name.removeprefix("limbo_fuzz_")
    for name in ("corpus", "broken", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    command = [
        str(program),
        str(folder / "corpus"),
        str(HERE / "seeds" / target),
        f"-max_total_time={seconds}",
        f"-max_len={MOST_INPUT_BYTES}",
        "-len_control=0",  # an input is a list of actions: long ones are worth their time
        # Threads allocate whenever they like, so most inputs seem to leak, and a search after each
        # takes nine tenths of the time. The end of the process searches once.
        "-detect_leaks=0",
        f"-artifact_prefix={folder}/broken/",
        "-print_final_stats=1",
        "-timeout=60",
        "-rss_limit_mb=4096",
    ]
    # A program that is ended by a broken rule leaves its sandbox behind; it goes with this folder.
    # The simulated GPU and its sockets need a short path.
    environment = os.environ | {"TMPDIR": f"/tmp/limbo-fuzz-{os.getpid()}-{target}"}
    Path(environment["TMPDIR"]).mkdir()
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
            )
    finally:
        shutil.rmtree(environment["TMPDIR"], ignore_errors=True)
    text = log.read_text(errors="replace")
    edges = re.findall(r"cov: (\d+) ft: (\d+)", text)
    executions = re.search(r"stat::number_of_executed_units: *(\d+)", text)
    line = (
        f"{target}: {executions.group(1) if executions else '?'} executions, "
        f"{edges[-1][0] if edges else '?'} edges, {edges[-1][1] if edges else '?'} features, "
        f"{len(list((folder / 'corpus').iterdir()))} inputs in the corpus"
    )
    if done.returncode == 0:
        return True, line
    return False, f"{line}: BROKEN (exit code {done.returncode}), see {log}\n{text[-6000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=HERE.parent.parent / "build" / "fuzz")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("targets", nargs="*", help="default: all that were built")
    options = parser.parse_args()
    build = options.build.resolve()
    programs = sorted(
        path
        for path in (build / "tests").glob("limbo_fuzz_*")
        if path.is_file() and os.access(path, os.X_OK) and path.name != "limbo_fuzz_tests"
    )
    if options.targets:
        wanted = {f"limbo_fuzz_{target}" for target in options.targets}
        programs = [path for path in programs if path.name in wanted]
        if len(programs) != len(wanted):
            print(f"not all of {sorted(wanted)} are in {build / 'tests'}", file=sys.stderr)
            return 2
    if not programs:
        print(f"there are no targets in {build / 'tests'}: build them first", file=sys.stderr)
        return 2
    whole = True
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        jobs = [
            pool.submit(
                run, path, build / "fuzz" / path.name.removeprefix("limbo_fuzz_"), options.seconds
            )
            for path in programs
        ]
        for job in jobs:
            fine, line = job.result()
            print(line, flush=True)
            whole = whole and fine
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
