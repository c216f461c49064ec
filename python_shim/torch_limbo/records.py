"""What the functions about lending give back, each a row of values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Holder:
    """One process that holds, or may still use, what this process has lent."""

    pid: int
    """For people only: pids are reused, and repeat across containers."""
    incarnation: str
    """Names one run of one process: 32 hexadecimal digits."""
    state: str
    """"connected", or "quarantine": it has ended, and its GPU work may still run."""
    why: str
    """What a quarantine waits for, or that a connected one's GPU context is lost; else empty."""
    claims: int
    """Messages of this process that it has open, or that its GPU has not yet let go of."""
    bytes: int
    """The memory of these messages."""
    mapped_pieces: int
    """Segments of this process that it has mapped."""
    mapped_bytes: int
    """Of these segments, which cannot be returned meanwhile, whether it uses them or not."""
    oldest_claim_ms: int
    """How long ago its oldest claim was noted, in milliseconds."""


@dataclass(frozen=True)
class LendingProcess:
    """A living process of this user that lends."""

    pid: int
    """For people only: pids are reused, and repeat across containers."""
    incarnation: str
    """Names one run of one process: 32 hexadecimal digits."""
    directory: str
    """Its runtime directory."""


@dataclass(frozen=True)
class Reaped:
    """What `reap` has taken back."""

    processes: int
    """Receivers that have ended and are done with."""
    claims: int
    """How many messages they had open."""


@dataclass(frozen=True)
class Option:
    """One option: an argument of `enable`, and the environment variable LIMBO_<NAME>."""

    name: str
    """As `enable` takes it."""
    unit: str
    """"ms", "bytes", "MiB", or "" for counts and switches."""
    minimum: int
    """The least value, in this unit."""
    maximum: int
    """The greatest value."""
    default: int
    """What holds where nobody says anything."""
    value: int
    """What holds in this process."""
    meaning: str
    """One line."""
