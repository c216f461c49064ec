"""How `pip install .` builds: scikit-build-core, for the torch that is installed already.

torch is no build requirement: pip would fetch a second one (2 GB) for the build alone. The torch of
the Python that pip runs on is used instead. pip's isolation changes where that Python looks for
modules, and not which Python it is, so the probe (probe_python.py, run with -I) sees the torch
beside which Limbo will be installed. Tools that isolate by an environment of its own (uv, build)
have to be told --no-build-isolation; the message says so.

Editable installs are refused: `PYTHONPATH=python_shim` uses a build folder in place.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent

# A compiler that takes this can compile Limbo.
PROBE = """
#include <concepts>
#include <span>
#include <version>
#if !defined(__cpp_lib_span) || !defined(__cpp_concepts) || !defined(__cpp_lib_atomic_ref)
#error "too old"
#endif
"""


def torch_minor() -> str:
    """The one minor version of torch that this Limbo is for."""
    text = (ROOT / "python_shim/torch_limbo/_version.py").read_text(encoding="utf-8")
    found = re.search(r'^TORCH_MINOR = "(.*)"', text, re.MULTILINE)
    assert found
    return found.group(1)


def refuse(problem: str, advice: str) -> NoReturn:
    """End the hook; pip shows what was printed."""
    print(f"\nLimbo cannot be built: {problem}\n{advice}\n", file=sys.stderr, flush=True)
    raise SystemExit(1)


def facts_about(python: str) -> dict[str, str]:
    """What probe_python.py says about a Python."""
    try:
        done = subprocess.run(
            [python, "-I", str(ROOT / "cmake/probe_python.py")],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        refuse(f"{python} does not run: {error}.", "Name a Python in LIMBO_PYTHON, or unset it.")
    if done.returncode != 0:
        refuse(
            f"{python} does not run as a Python: {done.stderr.strip()}",
            "Name a Python in LIMBO_PYTHON, or unset it.",
        )
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def check_torch(python: str) -> None:
    """Refuse a Python without the right torch."""
    facts = facts_about(python)
    minor = torch_minor()
    install = f"{python} -m pip install 'torch=={minor}.*'"
    version = facts.get("torch_version", "")
    if "torch_dir" not in facts:
        refuse(
            f"{python} has no torch, and Limbo is built for the torch that is installed.",
            f"Install it first:\n    {install}\n"
            "If it is installed where Limbo is to go, your tool builds in an environment of its "
            "own:\nput scikit-build-core into yours, and add --no-build-isolation.",
        )
    if not version.startswith(minor + "."):
        refuse(
            f"{python} has torch {version}, and this Limbo is for torch {minor}.",
            f"Install that torch:\n    {install}\nor a Limbo for torch {version}.",
        )
    if facts.get("torch_has_cuda_library") != "1":
        refuse(
            f"{python} has torch {version} without CUDA (no libtorch_cuda.so).",
            f"Install a torch with CUDA; PyPI's has it:\n    {install}",
        )


def check_compiler() -> None:
    """Refuse a machine without a C++20 compiler."""
    named = os.environ.get("CXX")
    names = [named] if named else ["c++", "g++", "clang++"]
    commands = [shlex.split(name) for name in names]
    command = next((words for words in commands if words and shutil.which(words[0])), None)
    advice = "Install one (g++ 12 or clang++ 14, or newer; on Debian: apt install g++)"
    advice += ", or name it in CXX."
    if command is None:
        refuse(f"there is no C++ compiler; looked for {', '.join(names)}.", advice)
    done = subprocess.run(
        [*command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"],
        input=PROBE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        refuse(f"{shlex.join(command)} does not compile C++20:\n{done.stderr.strip()}", advice)


def prepare() -> None:
    """Check what the build needs, and tell CMake which Python it is for."""
    python = os.environ.setdefault("LIMBO_PYTHON", sys.executable)
    check_torch(python)
    check_compiler()


def hook(name: str) -> Callable[..., Any]:
    """scikit-build-core's hook of that name, behind our checks."""

    def run(*arguments: Any, **named: Any) -> Any:
        prepare()
        from scikit_build_core import build

        return getattr(build, name)(*arguments, **named)

    return run


build_wheel = hook("build_wheel")
prepare_metadata_for_build_wheel = hook("prepare_metadata_for_build_wheel")
get_requires_for_build_wheel = hook("get_requires_for_build_wheel")


def refuse_editable(*_: Any, **__: Any) -> NoReturn:
    """`pip install -e .`: the library would be built into a folder that no build updates."""
    refuse(
        "an editable install is not offered.",
        "To work on the sources, build them (cmake --workflow --preset release) and set "
        f"PYTHONPATH={ROOT / 'python_shim'},\nwhich uses the newest build folder in place. "
        "To install: pip install .",
    )


# pip asks for the first of them before it fetches anything.
get_requires_for_build_editable = refuse_editable
prepare_metadata_for_build_editable = refuse_editable
build_editable = refuse_editable


def build_sdist(*arguments: Any, **named: Any) -> Any:
    """The sources as an archive: needs neither torch nor a compiler."""
    from scikit_build_core import build

    return build.build_sdist(*arguments, **named)


def get_requires_for_build_sdist(*arguments: Any, **named: Any) -> Any:
    from scikit_build_core import build

    return build.get_requires_for_build_sdist(*arguments, **named)
