"""Tensors under names: a process publishes, any other process of the same user acquires.

::

    registry = torch_limbo.Registry("job-42")
    registry.publish("weights", torch.empty(1 << 20, device="cuda"))

    weights = torch_limbo.Registry("job-42").acquire("weights")    # in another process
    ...
    registry.release(weights)                                      # or let it die

No server runs, and nothing is kept on disk but a symbolic link per name, which is passed over when
its owner has ended. Who lends, who holds, and what becomes of memory whose holder has died is as
with every other message of Limbo: acquiring is a send of its own, made by the owner for whoever
asks, and the memory is not reused before each of them has let go of it on its GPU.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from types import TracebackType

import torch

from . import _library, api, reductions
from .devices import device_argument
from .errors import LimboError, limbo_errors
from .records import Holder, LendingProcess, Reaped

#: Between a registry's space and a name in it.
_SEPARATOR = ":"

#: What this process publishes: kept until it is unpublished, since freed memory cannot be acquired.
# Storages: a tensor may be given another one (``parameter.data = ...``).
_published: dict[str, torch.UntypedStorage] = {}
_published_lock = threading.Lock()  # guards _published; nothing is called under it


@dataclass(frozen=True)
class PublishedName:
    """A name, and the living process that publishes something under it."""

    name: str
    owner: LendingProcess


class Registry:
    """The names of one space, ``space``; without one, all names of this user.

    Making one costs nothing: names belong to processes, not to this object, and two registries of
    one space are the same. As a context manager it unpublishes at the end what was published
    through it. All methods are thread-safe. They wait for files, and where another process is asked
    for its answer, at most a second; other threads run meanwhile.

    A name, with its space and a colon in front of it, has 1 to 200 bytes of UTF-8, no "/" and no
    zero byte, and does not begin with "."; anything else is ``bad_argument``.
    """

    def __init__(self, space: str = "") -> None:
        self._prefix = _checked_text("A registry's space", space) + _SEPARATOR if space else ""
        self._own: set[str] = set()

    @property
    def space(self) -> str:
        """The space that this registry was made with."""
        return self._prefix.removesuffix(_SEPARATOR)

    def publish(self, name: str, tensor: torch.Tensor, ttl: float | None = None) -> None:
        """Let every process of this user acquire the tensor as ``name``.

        Until it is unpublished or this process ends. The registry keeps the tensor, and with it its
        memory. An acquirer's work comes behind what the stream that is current here and now has
        queued when it acquires: write on that stream, or synchronise before you tell anybody that
        the values are new. ``ttl``: as in `share`, of each message that an acquirer does not open.

        Errors: those of `share`; ``name_taken`` (by a living process, this one too: `unpublish`
        first), ``busy`` (the names are locked for 2 s), ``bad_argument`` (the name),
        ``not_lendable`` (also a tensor without elements, and received memory, which its owner
        publishes).
        After an error nothing is published.
        """
        full_name = self._full(name)
        kind = api.checked_for_sending(tensor, ttl)
        _library.load()
        with _published_lock:
            taken = full_name in _published
            if not taken:
                _published[full_name] = tensor.untyped_storage()
        if taken:
            raise LimboError(
                "name_taken", f'This process publishes "{full_name}" already. Unpublish it first.'
            )
        try:
            with limbo_errors():
                torch.ops.limbo.publish(tensor, full_name, None if ttl is None else ttl, kind)
        except BaseException:
            with _published_lock:
                _published.pop(full_name, None)
            raise
        self._own.add(full_name)

    def unpublish(self, name: str) -> bool:
        """Nobody can acquire ``name`` any more; who has it keeps it. The registry lets go of the
        tensor. False: this process publishes no such name.

        Errors: ``bad_argument``, ``busy``, ``no_channel``; then it is published still.
        """
        return self._unpublish(self._full(name))

    def _unpublish(self, full_name: str) -> bool:
        _library.load()
        with limbo_errors():
            was_published = bool(torch.ops.limbo.unpublish(full_name))
        kept = None
        if was_published:  # else another thread may be publishing it just now
            with _published_lock:
                kept = _published.pop(full_name, None)
        self._own.discard(full_name)
        del kept  # behind the lock: freeing may call back
        return was_published

    def acquire(self, name: str, device: int | str | torch.device | None = None) -> torch.Tensor:
        """The tensor that somebody publishes as ``name``: the owner's memory, not a copy.

        As `receive` in everything else: acquired twice it is one storage, it is sent on, opened on
        another ``device``, and given back when the last tensor on it dies. In the owner itself it
        is a tensor over the same memory.

        Errors: ``no_such_name``, ``gone`` (its owner has freed the memory), ``producer_exited``,
        ``no_channel``, ``bad_argument``, and those of `receive`. After an error nothing is held.
        """
        full_name = self._full(name)
        device_argument(device)  # refused before anything is promised
        _library.start_cuda()
        with limbo_errors():
            message = torch.ops.limbo.acquire(full_name)
        return api.receive(reductions.bytes_of(message), device)

    def release(self, tensor: torch.Tensor) -> None:
        """Let go of an acquired tensor now, whoever still names it: it becomes one without
        elements, and its memory goes back behind the streams that used it, once no other tensor
        here is on it. Letting it die does the same. Released before: nothing happens.

        Errors: ``bad_argument`` for a tensor that was not received, and for what ``torch.func``
        gives to a function that it transforms; ``forked_child``.
        """
        if not isinstance(tensor, torch.Tensor):
            raise LimboError(
                "bad_argument", f"release takes a tensor that acquire gave, and this is {tensor!r}."
            )
        api.refuse_of_transform(tensor, "Release it")
        if tensor.numel() == 0 and tensor.untyped_storage().nbytes() == 0:
            return
        if not (_library.available() and bool(torch.ops.limbo.is_received(tensor))):
            raise LimboError(
                "bad_argument",
                f"release takes a tensor that acquire gave, and this one, of shape "
                f"{tuple(tensor.shape)} on {tensor.device}, is this process's own.",
            )
        with limbo_errors():
            torch.ops.limbo.is_orphaned(tensor)  # for its error in a fork child
        index = tensor.device.index or 0
        tensor.data = reductions.empty_tensor(tensor.dtype, index)

    def names(self) -> list[PublishedName]:
        """What living processes publish in this space, by runtime directory and name."""
        _library.load()
        with limbo_errors():
            rows = json.loads(torch.ops.limbo.names())
        return [
            PublishedName(row.pop("name").removeprefix(self._prefix), LendingProcess(**row))
            for row in rows
            if row["name"].startswith(self._prefix)
        ]

    def holders(self, name: str) -> list[Holder]:
        """Who holds what the owner of ``name`` has lent, under this name or in any other way.

        Errors: ``no_such_name``, ``producer_exited``, ``no_channel``, ``bad_argument``.
        """
        self._full(name)
        for published in self.names():
            if published.name == name:
                return api.holders(published.owner)
        raise LimboError("no_such_name", f'Nobody publishes "{name}" in the space "{self.space}".')

    def reap(self, force: bool = False) -> Reaped:
        """Have every process of this user that lends take back what receivers held that have ended.

        As `torch_limbo.reap`, which does it for this process, and like it not needed in ordinary
        programs. Processes that end meanwhile are passed over. A process that does not answer (it
        is stopped, say) is an error, ``no_channel``, raised when all others have been asked.
        """
        total = api.reap(force)
        own = api.own_incarnation()
        silent: LimboError | None = None
        for process in api.processes():
            if process.incarnation == own:
                continue
            try:
                reaped = api.reap(force, process)
            except LimboError as error:
                if error.code != "producer_exited":  # else nothing is to be taken back
                    silent = silent or error
                continue
            total = Reaped(total.processes + reaped.processes, total.claims + reaped.claims)
        if silent is not None:
            raise silent
        return total

    def close(self) -> None:
        """Unpublish all that was published through this object. Errors: as `unpublish`."""
        for full_name in sorted(self._own):
            self._unpublish(full_name)

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _full(self, name: str) -> str:
        return self._prefix + _checked_text("A name", name)


def _checked_text(what: str, text: str) -> str:
    """A text that can be told to the library, which checks the rest."""
    if not isinstance(text, str) or not text:
        raise LimboError("bad_argument", f"{what} cannot be {text!r}. Use a text.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise LimboError("bad_argument", f"{what} cannot be {text!r}: it has no UTF-8.") from None
    return text
