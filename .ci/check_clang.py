#!/usr/bin/env python3
"""Check that clang++ accepts the sources as well, with the warnings of the build as errors.

    check_clang.py BUILD_FOLDER [ROOT]

Reads compile_commands.json there and checks the sources under ROOT, this tree by default. The
sources of one folder are checked as one, without making code of them: seconds instead of minutes;
where that fails, one by one. Without clang++ it says so and checks nothing. Exit code 1 if clang++
refused something.
"""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

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


def accepts(compiler: str, options: list[str], sources: list[str], quiet: bool = False) -> bool:
    done = subprocess.run(
        [compiler, "-fsyntax-only", *options, "-x", "c++", "-"],
        input="".join(f'#include "{source}"\n' for source in sources),
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
    )
    return done.returncode == 0


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
    entries = json.loads((Path(sys.argv[1]) / "compile_commands.json").read_text(encoding="utf-8"))
    folders: dict[Path, dict[str, list[str]]] = {}
    for entry in entries:
        source = Path(entry["file"])
        if source.is_relative_to(root / "build") or not source.is_relative_to(root):
            continue
        # Programs have a main each.
        alone = source.parent.name == "tools" or source.name.endswith("main.cpp")
        group = source if alone else source.parent
        folders.setdefault(group, {}).setdefault(str(source), kept_options(entry["command"]))
    failed = False
    for group, sources in sorted(folders.items()):
        print(group.relative_to(root), flush=True)
        options = next(iter(sources.values()))
        if len(sources) > 1 and accepts(compiler, options, sorted(sources), quiet=True):
            continue
        # Alone: names of their own that collide are no error, and an error is told once.
        for source in sorted(sources):
            failed = not accepts(compiler, sources[source], [source]) or failed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
