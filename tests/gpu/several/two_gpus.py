"""Whether there are two GPUs. Asked in a process of its own, so that this stays without CUDA."""

from __future__ import annotations

import functools
import subprocess
import sys

from gpu_scripts import why_no_gpu

_QUESTION = """
import torch
if torch.cuda.device_count() < 2:
    raise SystemExit(f"torch sees {torch.cuda.device_count()}")
if not (torch.cuda.can_device_access_peer(0, 1) and torch.cuda.can_device_access_peer(1, 0)):
    raise SystemExit("the first two do not reach each other's memory")
"""


@functools.cache
def why_not_two_gpus() -> str:
    """Empty when there are two that reach each other's memory, else the reason."""
    reason = why_no_gpu()
    if reason:
        return reason
    command = [sys.executable, "-W", "ignore", "-c", _QUESTION]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
