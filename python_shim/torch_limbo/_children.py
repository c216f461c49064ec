"""Starting a Python that imports this very package, wherever it lies.

The folder that holds the package may be ``site-packages``, which comes behind the standard library
for a reason: a back-ported module there would stand in for the library's own. So no folder goes on
a child's path; its import of this package alone is told where to look.
"""

from __future__ import annotations

import sys
from pathlib import Path

_CODE = """
import sys
from importlib.machinery import PathFinder

class ThisPackage:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{folder!r}]) if name == {package!r} else None

sys.meta_path.insert(0, ThisPackage)
from {package} import {module}
sys.exit({module}.{function}())
"""


def command_of(module: str, function: str) -> list[str]:
    """What calls ``function``, without arguments, of a module of this package."""
    package = Path(__file__).resolve().parent
    code = _CODE.format(
        folder=str(package.parent), package=package.name, module=module, function=function
    )
    return [sys.executable, "-c", code]
