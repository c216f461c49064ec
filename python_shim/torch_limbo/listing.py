"""``python -m torch_limbo ls``: who lends what to whom."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from . import api
from .errors import LimboError
from .registry import Registry


def rows() -> list[dict[str, Any]]:
    """Every living process of this user that lends: what names it, its names, its holders, and
    ``error`` where it does not answer (else empty). Each is waited for at most 2 s. Processes that
    end meanwhile are passed over."""
    names: dict[str, list[str]] = {}
    for published in Registry().names():
        names.setdefault(published.owner.incarnation, []).append(published.name)
    made = []
    for process in api.processes():
        row: dict[str, Any] = asdict(process)
        row.update(names=sorted(names.get(process.incarnation, [])), holders=[], error="")
        try:
            row["holders"] = [asdict(holder) for holder in api.holders(process)]
        except LimboError as error:
            if error.code == "producer_exited":
                continue
            row["error"] = f"{error.code}: {error}"
        made.append(row)
    return made


def bytes_text(count: int) -> str:
    """A number of bytes for people: "2.0 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def table(lines: list[tuple[str, ...]], indent: str) -> str:
    """Columns of the width that they need."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        indent
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _print_process(row: dict[str, Any]) -> None:
    print(f"process {row['pid']} lends ({row['directory']}/{row['incarnation']})")
    for name in row["names"]:
        print(f"  publishes {name}")
    if row["error"]:
        print(f"  does not answer: {row['error']}")
        return
    lines: list[tuple[str, ...]] = [("to process", "state", "tensors", "bytes", "mapped", "oldest")]
    for holder in row["holders"]:
        state = holder["state"] + (f" ({holder['why']})" if holder["why"] else "")
        oldest = f"{holder['oldest_claim_ms'] / 1e3:.1f} s" if holder["claims"] else "-"
        mapped = bytes_text(holder["mapped_bytes"])
        lines.append(
            (
                str(holder["pid"]),
                state,
                str(holder["claims"]),
                bytes_text(holder["bytes"]),
                mapped,
                oldest,
            )
        )
    print(table(lines, "  ") if len(lines) > 1 else "  nobody holds anything")


def run_ls(as_json: bool) -> int:
    """Print it; the exit code: 0, or 1 if a process did not answer."""
    found = rows()
    if as_json:
        print(json.dumps(found, indent=2))
    elif not found:
        print("No process of this user lends anything.")
    else:
        for row in found:
            _print_process(row)
    return 1 if any(row["error"] for row in found) else 0
