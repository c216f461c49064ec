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
from pathlib import Path

from check_clang import groups_in, in_halves, report

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
    return in_halves(
        sorted(sources),
        lambda names: findings(tidy, config, sources[names[0]], names),
        lambda said: "clang-diagnostic-error" in said,
    )


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
    return report(groups, root, lambda sources: check(tidy, root / ".clang-tidy", sources))


if __name__ == "__main__":
    sys.exit(main())
