"""Tests on a GPU: each runs a script of scripts/ in a process of its own and reads its result.

Without a GPU they are skipped by name, with the reason.
"""

from __future__ import annotations

import pytest
from gpu_scripts import why_no_gpu


@pytest.fixture(autouse=True)
def _needs_gpu() -> None:
    reason = why_no_gpu()
    if reason:
        pytest.skip(f"needs a GPU: {reason}")
