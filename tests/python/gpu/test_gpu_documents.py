"""The examples of the documents, on the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import Example, examples, run_example


@pytest.mark.parametrize("example", examples(), ids=str)
def test_an_example(example: Example, tmp_path: Path) -> None:
    run_example(example, tmp_path, LIMBO_DEVICE="cuda")
