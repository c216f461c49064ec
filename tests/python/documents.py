"""The examples of the documents: what stands there between ```python and ```.

Each is a whole program. A line ``<!-- GPU only -->`` before one says that the simulated device
cannot run it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch_limbo

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part == "build" for part in path.relative_to(ROOT).parts)
)
LIBRARY = "build/release/hooks/libtorch_limbo.so"
GPU_ONLY = "<!-- GPU only -->\n"

_EXAMPLE = re.compile(r"((?:<!-- GPU only -->\n)?)^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Example:
    document: Path
    line: int
    gpu_only: bool
    code: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def examples() -> list[Example]:
    """All of them, in every document of the tree."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for match in _EXAMPLE.finditer(text):
            line = text.count("\n", 0, match.start(2)) + 1
            found.append(Example(document, line, match[1] == GPU_ONLY, match[2]))
    return found


def run_example(example: Example, folder: Path, **environment: str) -> None:
    """Runs it as a program of its own; fails unless it ends well and complains of nothing."""
    program = folder / "example.py"
    # An example names the library of the README's build: here it is the one that is under test.
    code = example.code.replace(LIBRARY, str(torch_limbo.library_path()))
    program.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )
    print(done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0, f"{example} ended with {done.returncode}:\n{done.stderr}"
    assert done.stderr == "", f"{example} complains:\n{done.stderr}"
