#!/usr/bin/env python3
"""Check that libraries export names of their own only.

What a library of ours exports can take the place of another's function of the same name: of the C++
library, say, which is another version there or made with other flags.

    check_exports.py [--also NAMESPACE]... LIBRARY...

What is allowed: `limbo_*`, what lies in the namespace limbo or in one given by --also, and
variables inside of functions, wherever those are from: of them there is to be one in a process.
Prints `library: name` for each offence; exit code 1 if there is one, or if a library exports
nothing.
"""

import argparse
import re
import subprocess
import sys


def allowed(namespaces: list[str]) -> re.Pattern[str]:
    """Names, as the linker has them, that may be exported."""
    names = "|".join(f"{len(name)}{name}" for name in namespaces)
    own = (
        r"limbo_\w*$",
        # A function or a variable, or what the compiler keeps of one: virtual tables, types, their
        # names, guards, calls by way of another base. Also inside of functions.
        rf"_Z(GV|GR|T[A-Z]|Th\w*?_|Tv\w*?_)?Z*N?[KVRO]*({names})",
    )
    in_functions = r"_Z(GV)?Z"
    return re.compile("|".join((*own, in_functions)))


def exported(library: str) -> list[str]:
    done = subprocess.run(
        ["nm", "--dynamic", "--defined-only", library], capture_output=True, text=True, check=True
    )
    return [line.split()[-1].split("@")[0] for line in done.stdout.splitlines()]


def readable(names: list[str]) -> list[str]:
    done = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--also", action="append", default=[], metavar="NAMESPACE")
    parser.add_argument("library", nargs="+")
    arguments = parser.parse_args()
    may = allowed(["limbo", *arguments.also])
    failed = False
    for library in arguments.library:
        names = exported(library)
        if not names:
            print(f"{library}: exports nothing")
            failed = True
        for name in readable([name for name in names if not may.match(name)]):
            print(f"{library}: {name}")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
