"""The process that `doctor` lends to: opens what it is told to, and says what it read.

One request a line on standard input: a device (-1: the owner's) and a message in hexadecimal. One
answer a line: ``sum NUMBER`` or what went wrong. What it opened it holds until the next request.
"""

from __future__ import annotations

import sys

import torch

from . import _library, api
from .errors import LimboError


def main() -> int:
    """Answer until standard input ends."""
    kept: torch.Tensor | None = None
    for line in sys.stdin:
        device, message = line.split()
        del kept
        kept = None
        try:
            kept = api.receive(bytes.fromhex(message), None if device == "-1" else int(device))
            values = torch.ops.limbo.sim_read(kept) if _library.simulated() else kept.cpu()
            print(f"sum {values.double().sum().item()}", flush=True)
        except (LimboError, RuntimeError) as error:
            print(" ".join(str(error).split()), flush=True)
    return 0
