"""Running the scripts of scripts/, each in a process of its own that sees both GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_scripts import run_script

SCRIPTS = Path(__file__).parent / "scripts"


def run_several(name: str, *arguments: str) -> dict[str, Any]:
    """The RESULT of a script."""
    return run_script(str(SCRIPTS / name), *arguments)
