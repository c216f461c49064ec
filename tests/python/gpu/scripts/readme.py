"""README.md's Python example, as it stands there, as a program of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import report

README = Path(__file__).resolve().parents[4] / "README.md"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    example = text.split("```python\n", 1)[1].split("```", 1)[0]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "example.py"
        program.write_text(example, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=False
        )
    report(exit=done.returncode, output=done.stdout, errors=done.stderr)


if __name__ == "__main__":
    main()
