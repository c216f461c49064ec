"""Whether this Python's torch is the one that the package is for; looked at before anything else
of the package, which patches torch's functions and would patch another version's wrongly."""

from __future__ import annotations

import itertools
import sys

from ._version import TORCH_MINOR


def is_right(version: str) -> bool:
    """Whether a torch of this version ("2.11.0+cu130") can be served."""
    return ".".join(version.split(".")[:2]) == TORCH_MINOR


def wrong_version_text(version: str) -> str:
    """What to tell whoever runs another one."""
    return (
        f"This Limbo is built for torch {TORCH_MINOR}, and torch {version} is running. "
        f"Install a Limbo for that version, or torch {TORCH_MINOR}: "
        f"{sys.executable} -m pip install 'torch=={TORCH_MINOR}.*'"
    )


def refusal() -> Exception | None:
    """The error with which importing the package ends here; None: torch is there and right."""
    install = f"{sys.executable} -m pip install 'torch=={TORCH_MINOR}.*'"
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return ModuleNotFoundError(
                f"torch_limbo needs torch {TORCH_MINOR}, and {sys.executable} has no torch. "
                f"Install it: {install}",
                name="torch",
            )
        return _that_does_not_load(error, install)
    except (ImportError, OSError) as error:  # a library of it is missing, or another's is found
        return _that_does_not_load(error, install)
    if is_right(torch.__version__):
        return None
    from .errors import LimboError

    return LimboError("wrong_torch", wrong_version_text(torch.__version__))


def _that_does_not_load(error: Exception, install: str) -> ImportError:
    """For the command line. A program's import ends with torch's own error, traceback and all."""
    if not runs_as_command():
        raise error
    what = str(error).rstrip(".").replace(". ", "; ")
    return ImportError(
        f"torch of {sys.executable} cannot be loaded: {what}. Install it again: "
        f"{install} --force-reinstall"
    )


def runs_as_command() -> bool:
    """Whether this process is ``python -m torch_limbo``, which tells by itself what is wrong."""
    given = sys.orig_argv[1:]
    return "-mtorch_limbo" in given or ("-m", "torch_limbo") in itertools.pairwise(given)
