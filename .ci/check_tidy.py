#!/usr/bin/env python3
"""Check the core with clang-tidy, by the checks in .clang-tidy.

    check_tidy.py BUILD_FOLDER [ROOT]

Reads compile_commands.json there and checks the sources in allocator/ and ipc/ under ROOT, this
tree by default. The sources of one folder are read as one, which takes a tenth of the time; where
that is no C++ because names of their own collide, in halves, down to each alone. The static
analyzer takes much longer than everything else: the target limbo-tidy runs it. Without clang-tidy
it says so and checks nothing. Exit code 1 if clang-tidy found something.
"""

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from check_clang import groups_in, jobs

FOLDERS = ("allocator", "ipc")
# The second one is about the file that reads the others.
LEFT_OUT = "-clang-analyzer-*,-bugprone-suspicious-include"


def findings(tidy: str, config: Path, options: list[str], sources: list[str]) -> str:
    """What clang-tidy says about these sources, read as one; empty: nothing."""
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as joined:
        joined.write("".join(f'#include "{source}"\n' for source in sources))
        joined.flush()
        done = subprocess.run(
            [
                tidy,
                "--quiet",
                f"--config-file={config}",
                f"--checks={LEFT_OUT}",
                joined.name,
                "--",
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    return "" if done.returncode == 0 else done.stdout or f"{tidy} ended with {done.returncode}\n"


def check(tidy: str, config: Path, sources: dict[str, list[str]]) -> str:
    names = sorted(sources)
    said = findings(tidy, config, sources[names[0]], names)
    if len(names) == 1 or "clang-diagnostic-error" not in said:
        return said
    half = len(names) // 2
    parts = (names[:half], names[half:])
    return "".join(check(tidy, config, {name: sources[name] for name in part}) for part in parts)


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    tidy = shutil.which("clang-tidy-14") or shutil.which("clang-tidy")
    if tidy is None:
        print("not run: there is no clang-tidy")
        return 0
    root = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent.parent
    root = root.resolve()
    groups = {
        group: sources
        for group, sources in groups_in(Path(sys.argv[1]).resolve(), root).items()
        if group.is_relative_to(root) and group.relative_to(root).parts[0] in FOLDERS
    }
    failed = False
    order = sorted(groups, key=lambda group: (-len(groups[group]), group))
    with ThreadPoolExecutor(jobs()) as pool:
        said_of = pool.map(lambda group: check(tidy, root / ".clang-tidy", groups[group]), order)
        for group, said in zip(order, said_of, strict=True):
            print(group.relative_to(root), flush=True)
            if said:
                failed = True
                print(said, file=sys.stderr, end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
