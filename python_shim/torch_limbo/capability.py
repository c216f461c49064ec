"""One line of `doctor`'s report, and how a line is made of what an attempt gives or raises."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WORKS, FAILS, NOT_NEEDED, UNKNOWN = "works", "does not", "not needed", "not tried"

#: The lines, in this order, and whether nothing can be lent without what they speak of.
NEEDED = {
    "torch": True,
    "driver": True,
    "GPU": True,
    "memory handles": True,
    "stream memory operations": True,
    "runtime directory": True,
    "pidfd": True,
    "life line": True,
    "memfd seals": True,
    "MPS": False,
    "namespaces": False,
    "peer access": False,
}


@dataclass(frozen=True)
class Capability:
    """One line of the report."""

    name: str
    state: str
    seen: str
    advice: str = ""

    @property
    def needed(self) -> bool:
        """Whether nothing can be lent without it."""
        return NEEDED[self.name]

    def line(self, width: int) -> str:
        """As it is printed; `width` is that of the longest name."""
        advice = f" To do: {self.advice.rstrip('.')}." if self.advice else ""
        return f"{self.name:{width}}  {self.state:10}  {self.seen.rstrip('.')}.{advice}"


def attempt(
    names: Sequence[str], body: Callable[[], Iterable[Capability] | Capability], advice: str = ""
) -> list[Capability]:
    """The lines that `body` gives; if it raises, the first of `names` says so, and the others
    that they were not tried."""
    from .errors import LimboError

    try:
        made = body()
        return [made] if isinstance(made, Capability) else list(made)
    except (LimboError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        first = failed(names[0], error, advice)
        return [first, *(Capability(name, UNKNOWN, first.seen) for name in names[1:])]


def failed(name: str, error: Exception, advice: str = "") -> Capability:
    """The line of an error. Ours end with what to do; of others the beginning says enough."""
    sentences = " ".join(str(error).split()).removesuffix(".").split(". ")
    ours = hasattr(error, "code") or isinstance(error, ImportError)
    if not ours:
        del sentences[2:]
        if type(error).__name__ == "OutOfMemoryError":
            advice = "free memory of that GPU, or choose others by CUDA_VISIBLE_DEVICES"
        elif isinstance(error, RuntimeError):
            advice = advice or "run nvidia-smi, which may say why"
        else:
            advice = advice or "see what this user may do here (permissions, ulimit -a)"
    elif not advice and len(sentences) > 1:
        advice = sentences.pop()
    return Capability(name, FAILS, ". ".join(sentences), advice)
