"""The command line: ``python -m torch_limbo COMMAND``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .errors import LimboError

#: Designed, and not made yet: named in the error, and not in the help.
_NOT_YET = ("doctor", "ls", "top")


def build_parser() -> argparse.ArgumentParser:
    """The parser: only commands that exist are in it."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_limbo",
        description="Limbo: a CUDA caching allocator for PyTorch whose memory can be lent to other "
        "processes.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="a trainer lends its weights to an inference process, which is killed once",
        description="A trainer hands its weights to an inference process through an mp.Queue "
        "after each step. In the middle the inference process is killed while it holds weights, "
        "and started again. Exit code 0 if every byte came back and every value was right, else 1.",
    )
    demo.add_argument(
        "--device",
        choices=("auto", "cuda", "simulated"),
        default="auto",
        help="auto (the default): what LIMBO_DEVICE says, else the GPU where there is one, else "
        "the simulated device",
    )
    demo.add_argument(
        "--steps", type=int, default=8, metavar="N", help="training steps, 4 or more (default 8)"
    )
    commands.add_parser(
        "options", help="every option with its unit, range, default and present value"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = build_parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _NOT_YET:
        parser.error(f"{given[0]} is not available yet in this version of Limbo")
    chosen = parser.parse_args(given)
    try:
        if chosen.command == "demo":
            if chosen.steps < 4:
                parser.error(f"--steps cannot be {chosen.steps}: use 4 or more")
            from .demo import run_demo

            return run_demo(chosen.device, chosen.steps)
        return print_options()
    except LimboError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return 1


def print_options() -> int:
    """The table of options."""
    from .api import options

    for option in options():
        unit = f" {option.unit}" if option.unit else ""
        print(f"{option.name} = {option.value}{unit}")
        print(f"    {option.meaning}")
        print(
            f"    from {option.minimum} to {option.maximum}{unit}, by default {option.default}; "
            f"LIMBO_{option.name.upper()}"
        )
    return 0
