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
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return ModuleNotFoundError(
            f"torch_limbo needs torch {TORCH_MINOR}, and {sys.executable} has no torch. "
            f"Install it: {sys.executable} -m pip install 'torch=={TORCH_MINOR}.*'",
            name="torch",
        )
    if is_right(torch.__version__):
        return None
    from .errors import LimboError

    return LimboError("wrong_torch", wrong_version_text(torch.__version__))


def runs_as_command() -> bool:
    """Whether this process is ``python -m torch_limbo``, which tells by itself what is wrong."""
    given = sys.orig_argv[1:]
    return "-mtorch_limbo" in given or ("-m", "torch_limbo") in itertools.pairwise(given)
