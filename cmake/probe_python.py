"""Print, as `key=value` lines for CMake, what one Python installation offers.

Run it with `-I` so that neither the current folder nor PYTHONPATH can pretend to be torch. Nothing
is imported: finding torch takes milliseconds this way, importing it takes seconds.
"""

import importlib.util
import os
import re
import site
import sys
from collections.abc import Iterable
from pathlib import Path


def folder_of(module: str) -> list[Path]:
    """The folders of a package, or of each part of a namespace package."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(folder).resolve() for folder in spec.submodule_search_locations]


def existing(folders: Iterable[Path]) -> str:
    return ";".join(str(folder) for folder in folders if folder.is_dir())


def report_torch(torch: Path) -> None:
    text = (torch / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__ = '([^']*)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b.*= '([^']*)'", text, re.MULTILINE)
    print(f"torch_dir={torch}")
    print(f"torch_version={version.group(1) if version else 'unknown'}")
    print(f"torch_cuda={cuda.group(1) if cuda else ''}")
    has_cuda = (torch / "lib" / "libtorch_cuda.so").is_file()
    print(f"torch_has_cuda_library={int(has_cuda)}")
    core = torch / "lib" / "libc10.so"
    if core.is_file():
        # torch says which std::string it was built with only at run time; its symbols say it too.
        print(f"torch_cxx11_abi={int(b'__cxx11' in core.read_bytes())}")


def main() -> None:
    if sys.prefix == sys.base_prefix and os.path.isdir(site.getusersitepackages()):
        site.addsitedir(site.getusersitepackages())  # -I left it out
    print(f"executable={sys.executable}")
    print(f"version={sys.version_info.major}.{sys.version_info.minor}")
    for module in (
        "pip",
        "ensurepip",
        "venv",
        "pytest",
        "pytest_timeout",
        "numpy",
        "scikit_build_core",
    ):
        spec = importlib.util.find_spec(module)
        # An empty folder of that name is found too, as a namespace without an origin.
        print(f"has_{module}={int(spec is not None and spec.origin is not None)}")
    nvidia = folder_of("nvidia")
    # Before CUDA 13 each package had folders of its own, since then all share nvidia/cu13.
    packages = [package for folder in nvidia for package in sorted(folder.glob("*"))]
    print(f"cuda_include_dirs={existing(package / 'include' for package in packages)}")
    print(f"cuda_library_dirs={existing(package / 'lib' for package in packages)}")
    for torch in folder_of("torch")[:1]:
        if (torch / "version.py").is_file():
            report_torch(torch)


main()
