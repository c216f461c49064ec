"""The command line: ``python -m torch_limbo COMMAND``."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence

from . import _torch


def build_parser() -> argparse.ArgumentParser:
    """The parser."""
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
    doctor = commands.add_parser(
        "doctor",
        help="what lending needs of this machine: what works, what does not, why, what to do",
        description="Tries what lending needs of this machine, a line for each: works, does not, "
        "not needed, or not tried; why; and what to do. Exit code 1 if nothing can be lent here. "
        "LIMBO_DEVICE=simulated looks at the simulated device instead of the GPU.",
    )
    listing = commands.add_parser(
        "ls",
        help="who lends what to whom",
        description="Asks every process of this user that lends: what it publishes, and who holds "
        "how much of its memory. Exit code 1 if one does not answer.",
    )
    bench = commands.add_parser(
        "bench",
        help="what allocating and sharing cost here, in a few seconds",
        description="Measures allocating, sharing, receiving and releasing from Python, in "
        "microseconds; on a GPU also torch's own allocator.",
    )
    for command in (doctor, listing, bench):
        command.add_argument("--json", action="store_true", help="for scripts")
    commands.add_parser(
        "options", help="every option with its unit, range, default and present value"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = build_parser()
    chosen = parser.parse_args(arguments)
    if chosen.command == "demo" and chosen.steps < 4:
        parser.error(f"--steps cannot be {chosen.steps}: use 4 or more")
    if chosen.command == "doctor":  # also where there is no torch, or another one
        from .doctor import run_doctor

        return run_doctor(chosen.json)
    refusal = _torch.refusal()
    if refusal is not None:
        print(refusal, file=sys.stderr)
        return 1
    try:
        return _run(chosen)
    except RuntimeError as error:  # Limbo's, which have a code, and torch's
        print(f"{getattr(error, 'code', 'error')}: {error}", file=sys.stderr)
        return 1


def main_of_process() -> int:
    """Run what the command line says. Whose reader has gone (``| head -1``) ends without a word,
    with the code that a shell gives to what SIGPIPE has ended."""
    try:
        try:
            return main()
        finally:
            _flush()
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        # What could not be written may be kept, and tried again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _reader_has_gone() -> bool:
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return bool(output.poll(0))  # what is told without being asked for: errors, hanging up


def _flush() -> None:
    if sys.stdout is not None:  # it was closed before the start
        sys.stdout.flush()


def _run(chosen: argparse.Namespace) -> int:
    if chosen.command == "demo":
        from .demo import run_demo

        return run_demo(chosen.device, chosen.steps)
    if chosen.command == "ls":
        from .listing import run_ls

        return run_ls(chosen.json)
    if chosen.command == "bench":
        from .bench import run_bench

        return run_bench(chosen.json)
    return print_options()


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
