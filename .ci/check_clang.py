#!/usr/bin/env python3
"""Check that clang++ accepts the sources as well, with the warnings of the build as errors.

    check_clang.py BUILD_FOLDER [ROOT]

Reads compile_commands.json there and checks the sources under ROOT, this tree by default. The
sources of one folder are checked as one, without making code of them: seconds instead of minutes;
where that fails, in halves, down to each alone. As many run at once as there are cores, and 2 GB of
memory for each. Without clang++ it says so and checks nothing. Exit code 1 if clang++ refused
something.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: By group (a folder, or a program): the sources' paths, and the options of each.
Groups = dict[Path, dict[str, list[str]]]

# What of a compile command decides what a source means, with and without a separate value.
KEPT = ("-D", "-I", "-isystem", "-std=", "-W")
WITH_VALUE = ("-isystem", "-I", "-D")


def kept_options(command: str) -> list[str]:
    words = shlex.split(command)
    kept = []
    for index, word in enumerate(words):
        if word in WITH_VALUE:
            kept += [word, words[index + 1]]
        elif word.startswith(KEPT) and not word.startswith("-Wno-maybe-uninitialized"):
            kept.append(word)
    return kept


def refusals(compiler: str, options: list[str], sources: list[str]) -> str:
    """What clang++ says against these sources, compiled as one; empty: nothing."""
    done = subprocess.run(
        [compiler, "-fsyntax-only", *options, "-x", "c++", "-"],
        input="".join(f'#include "{source}"\n' for source in sources),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr or f"clang++ ended with {done.returncode}\n"


def in_halves(
    names: list[str], say: Callable[[list[str]], str], collide: Callable[[str], bool]
) -> str:
    """What `say` says about sources that may stand in one file, except where names of their own
    `collide`, which is no error: then about each half."""
    said = say(names)
    if len(names) == 1 or not collide(said):
        return said
    half = len(names) // 2
    return "".join(in_halves(part, say, collide) for part in (names[:half], names[half:]))


def check(compiler: str, sources: dict[str, list[str]]) -> str:
    """The refusals of sources (path: options)."""
    return in_halves(
        sorted(sources), lambda names: refusals(compiler, sources[names[0]], names), bool
    )


def sources_of(entry: dict[str, str], build: Path) -> Iterator[Path]:
    """The sources that a compile command compiles: CMake joins several in a file of its own."""
    file = Path(entry["file"])
    if not (file.is_relative_to(build) and file.name.startswith("unity_")):
        yield file
    elif file.is_file():
        text = file.read_text(encoding="utf-8")
        yield from map(Path, re.findall(r'^#include "(.*)"', text, re.MULTILINE))


def groups_in(build: Path, root: Path) -> Groups:
    """What is checked together: folders, and programs, which have a main each."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    groups: Groups = {}
    for entry in entries:
        for source in sources_of(entry, build):
            if source.is_relative_to(root / "build") or not source.is_relative_to(root):
                continue
            alone = source.parent.name == "tools" or source.name.endswith("main.cpp")
            group = source if alone else source.parent
            groups.setdefault(group, {}).setdefault(str(source), kept_options(entry["command"]))
    return groups


def jobs() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // 2_000_000_000))


def report(
    groups: dict[Path, dict[str, list[str]]],
    root: Path,
    check: Callable[[dict[str, list[str]]], str],
) -> int:
    """Checks all groups and prints what is said about each; the exit code."""
    failed = False
    # The largest first, so that none of them is left alone at the end.
    order = sorted(groups, key=lambda group: (-len(groups[group]), group))
    with ThreadPoolExecutor(jobs()) as pool:
        said_of = pool.map(lambda group: check(groups[group]), order)
        for group, said in zip(order, said_of, strict=True):
            print(group.relative_to(root), flush=True)
            if said:
                failed = True
                print(said, file=sys.stderr, end="", flush=True)
    return 1 if failed else 0


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    compiler = shutil.which("clang++-14") or shutil.which("clang++")
    if compiler is None:
        print("not run: there is no clang++")
        return 0
    root = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent.parent
    root = root.resolve()
    groups = groups_in(Path(sys.argv[1]).resolve(), root)
    return report(groups, root, lambda sources: check(compiler, sources))


if __name__ == "__main__":
    sys.exit(main())
