"""The balance that a test must leave behind: as many bytes, exports and descriptors as before."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

import torch_limbo

_EVEN = ("allocated_bytes", "active_bytes", "limbo_blocks", "limbo_bytes", "exports_open")
_TIME_S = 20.0


def descriptors() -> dict[str, str]:
    """Open file descriptors by number, with what they are."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the one that listed the folder
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = _TIME_S) -> None:
    """Poll until the condition holds; AssertionError with `what` and who holds what."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(
                f"after {seconds} s: {what}; holders: {torch_limbo.holders()}; statistics: "
                f"{torch_limbo.stats()}"
            )
        time.sleep(0.002)


def wait_for_empty_limbo() -> None:
    """Wait until all that was lent and freed is back, without collecting in this thread."""
    gc.collect()
    wait_until(lambda: torch_limbo.stats()["limbo_blocks"] == 0, "blocks are still in limbo")


class Balance:
    """Takes the numbers when made, and compares in `check`."""

    def __init__(self) -> None:
        self._numbers = {name: torch_limbo.stats()[name] for name in _EVEN}
        self._descriptors = descriptors()

    def check(self) -> None:
        """Wait until everything has come back; AssertionError says what has not."""
        end = time.monotonic() + _TIME_S
        while True:
            gc.collect()
            torch_limbo.collect()
            wrong = self._differences()
            if not wrong:
                return
            if time.monotonic() > end:
                raise AssertionError("\n".join([*wrong, f"holders: {torch_limbo.holders()}"]))
            time.sleep(0.002)

    def _differences(self) -> list[str]:
        now = torch_limbo.stats()
        wrong = [
            f"{name}: {before} before the test, {now[name]} after"
            for name, before in self._numbers.items()
            if now[name] != before
        ]
        opened = descriptors()
        if len(opened) > len(self._descriptors):
            new = [what for number, what in opened.items() if number not in self._descriptors]
            wrong.append(f"file descriptors opened and not closed: {new}")
        return wrong
