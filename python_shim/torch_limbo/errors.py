"""The one exception of the package, and how the library's errors become it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_OPERATOR_ERROR = re.compile(r"limbo\[(\w+)\]: (.*)", re.DOTALL)


class LimboError(RuntimeError):
    """What went wrong, to whom, and what to do about it.

    ``code`` is for programs. It is one of:

    ==================== ================================================================
    code                 meaning
    ==================== ================================================================
    bad_argument         a value that the function cannot take
    unknown_option       an option, or a value of it, that does not exist
    out_of_memory        the device is full (by torch's allocation functions this is
                         ``torch.cuda.OutOfMemoryError`` instead)
    double_free          a block was freed twice
    foreign_free         a pointer was freed that Limbo never handed out
    interior_free        a pointer into a block was freed
    not_lendable         memory that Limbo did not allocate, or that cannot be shared
    bad_descriptor       truncated, altered, or of another version; nothing was touched
    gone                 the message is over, its memory is not the sender's any more; of received
                         memory that is sent on: its owner has taken it back
    withdrawn            the sender took the message back
    expired              the message was opened after its time limit
    producer_exited      the process that owns the memory has ended, or has lost its GPU context
    device_not_visible   the owner's GPU is not visible to this process
    no_channel           the owner cannot be reached, does not answer in time, is of another
                         version or user, or has no room for this process
    ledger_full          a table is full; the text names the option to raise
    device_error         a driver call failed
    not_resizable        a received storage cannot grow
    forked_child         this process was forked after its parent had used the device
    not_available_yet    what this version cannot do yet: sending while a stream of the sender is
                         being captured into a graph
    already_in_use       ``enable()`` came after CUDA memory had been used or after another plug-in,
                         an option after it was fixed, or a second copy of the library is loaded
    wrong_torch          the library was built for another minor version of torch
    name_taken           a living process publishes something under this name
    no_such_name         nobody publishes anything under this name
    busy                 another process keeps the names locked
    no_library           ``libtorch_limbo.so`` was not found, or could not be loaded
    internal             a broken invariant of Limbo itself
    ==================== ================================================================
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[type[LimboError], tuple[str, str]]:
        """Make the exception survive pickling, code included (pools send errors back)."""
        return (type(self), (self.code, str(self)))


@contextmanager
def limbo_errors() -> Iterator[None]:
    """Turn what Limbo's operators raise inside the block into LimboError.

    Their texts begin with ``limbo[<code>]: ``. Everything else passes as it is, torch's
    OutOfMemoryError among it.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        found = None if isinstance(error, LimboError) else _OPERATOR_ERROR.search(str(error))
        if found is None:
            raise
        raise LimboError(found.group(1), found.group(2)) from None
