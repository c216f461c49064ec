"""What a program calls: enable, share, receive, withdraw, is_orphaned, collect, holders, stats,
options.

All functions are thread-safe. None waits for a stream, a peer or another thread, except where its
text says so. In a child that was forked after its parent had used the GPU they raise
``forked_child``, except for what asks about the library alone: `enable`, `options`, `library_path`
and `LimboAllocator` answer there too, and `is_orphaned` of a tensor that was not received is False.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import multiprocessing
import multiprocessing.util
from typing import Any

import torch

from . import _library, reductions, workers
from .errors import LimboError, limbo_errors
from .records import Holder, LendingProcess, Option, Reaped

# What the operators take.
_MOST_CONSUMERS = 1_000_000
_MOST_TTL_S = 366 * 86_400


class LimboAllocator(torch.cuda.memory.CUDAPluggableAllocator):
    """Limbo's allocator as an object, complete from the start.

    For ``torch.cuda.memory.change_current_allocator``, before CUDA memory is used. torch replaces
    no other plug-in (``CUDAPluggableAllocator``) by it; where one is torch's allocator, making the
    object leaves it in place, and its tensors too. Errors: ``no_library``, ``wrong_torch``.
    """

    def __init__(self) -> None:
        library = _library.load()
        _library.check(library.limbo_torch_make_allocator())
        try:
            # For this moment torch's current allocator is Limbo's; restore puts the other back.
            self._allocator = torch._C._cuda_getAllocator()
        finally:
            _library.check(library.limbo_torch_restore_allocator())


def enable(multiprocessing: str = "limbo", **options: int) -> None:
    """Make Limbo the CUDA allocator of this process. Call it before CUDA memory is used.

    ``multiprocessing``: "limbo" sends CUDA tensors through ``torch.multiprocessing`` by descriptor,
    "stock" leaves that to torch. ``options``: see `options`. A second call changes these two and
    installs nothing. Starts no CUDA and no thread.

    Errors: ``wrong_torch``, ``no_library``, ``already_in_use`` (CUDA memory was used before; an
    option that is fixed by now), ``bad_argument`` (also for ``backend:`` in
    PYTORCH_CUDA_ALLOC_CONF), ``unknown_option`` (also for a variable ``LIMBO_<OPTION>`` that cannot
    be read), ``device_error``. After an error nothing has changed.
    """
    if multiprocessing not in ("limbo", "stock"):
        raise LimboError(
            "bad_argument",
            f'enable(multiprocessing={multiprocessing!r}) is not possible. Use "limbo" or "stock".',
        )
    library = _library.load()
    for name, value in options.items():
        if not name.isidentifier() or not name.isascii():  # nor can a C function be told any other
            raise LimboError(
                "unknown_option",
                f"There is no option {name!r}; torch_limbo.options() lists them.",
            )
        if not isinstance(value, int):
            raise LimboError(
                "bad_argument",
                f"Option {name} cannot be {value!r}. Use a whole number; torch_limbo.options() "
                "lists units and ranges.",
            )
        if not -(2**63) <= value < 2**63:  # what a C function can be told
            raise LimboError(
                "unknown_option",
                f"Option {name} cannot be {value}; torch_limbo.options() lists units and ranges.",
            )
    names = (ctypes.c_char_p * len(options))(*(name.encode() for name in options))
    values = (ctypes.c_int64 * len(options))(*(int(value) for value in options.values()))
    _library.check(library.limbo_torch_enable(names, values, len(options)))
    reductions.send_by_descriptor(multiprocessing == "limbo")


def share(tensor: torch.Tensor, consumers: int = 1, ttl: float | None = None) -> bytes:
    """A message that lends the tensor's memory: bytes that may travel by any road.

    Lent is the whole storage, also of a view: tensors of one storage here are of one storage there,
    and the block comes back as one.

    The receiver's work on the tensor comes behind what the current stream has queued now. The
    memory is not reused before the receiver has let go of it on its GPU. ``consumers``: how many
    processes are promised the memory, 1 to 1,000,000: until so many have opened the message
    (however often each) it can be opened, also after this process has freed the tensor. With more
    than one, each process that opens it costs at most 32 bytes of this one until the message is
    over. ``ttl``: how long a message that not all of them have opened keeps the memory, in seconds,
    above 0 and at most 366 days, counted from the later of now and the free; by default the option
    ``message_time_limit_ms``.

    A received tensor, or a view of one, is sent on: its owner is asked, and answers within a
    second. The receiver's work comes behind the owner's and this process's. The new message lasts
    no longer, unopened, than the one that brought the tensor: that much its owner has agreed to.

    Blocks, as a launch would, where the current stream takes no more entries: behind a long kernel
    that is after 1,021 of them.

    Errors: ``not_lendable`` (a CPU tensor, memory of another allocator, of a CUDA graph or of a
    ``torch.cuda.MemPool``: share ``clone()``, made outside of them), ``bad_argument``
    (``consumers`` or ``ttl`` out of range, a non-leaf that requires grad, named dimensions, a
    subclass of Tensor other than Parameter, what ``torch.func`` gives to a function that it
    transforms), ``not_available_yet`` (the current stream is being captured into a graph),
    ``ledger_full``, ``no_channel``, ``device_error`` (a driver call failed; this process's GPU
    context is lost), ``forked_child``; of a received tensor also ``gone``, ``withdrawn``,
    ``expired`` and ``producer_exited`` (send ``clone()``).
    """
    kind = checked_for_sending(tensor, ttl)
    if not isinstance(consumers, int) or not 1 <= consumers <= _MOST_CONSUMERS:
        raise LimboError(
            "bad_argument",
            f"consumers cannot be {consumers!r}. Use a whole number, 1 to {_MOST_CONSUMERS:,}.",
        )
    _library.load()
    with limbo_errors():
        message = torch.ops.limbo.share(
            tensor, consumers, None if ttl is None else float(ttl), kind
        )
    return reductions.bytes_of(message)


def checked_for_sending(tensor: torch.Tensor, ttl: float | None) -> int:
    """The kind of a tensor that is sent by hand or published; ``bad_argument`` for what it loses
    on the way."""
    if not isinstance(tensor, torch.Tensor):
        raise LimboError(
            "bad_argument", f"Tensors are shared, and this is a {type(tensor).__name__}."
        )
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise LimboError(
            "bad_argument",
            "A plain tensor or a Parameter can be shared, and this is a "
            f"{type(tensor).__name__}. Share the plain tensors that it is made of.",
        )
    refuse_of_transform(tensor, "Share it")
    if tensor.requires_grad and not tensor.is_leaf:
        raise LimboError(
            "bad_argument",
            "The tensor requires_grad and is not a leaf, and autograd ends at the border of a "
            "process. Share tensor.detach().",
        )
    if tensor.has_names():
        raise LimboError(
            "bad_argument",
            f"The tensor's dimensions have names, {tensor.names}, and a message has none. Share "
            "tensor.rename(None).",
        )
    if ttl is not None and not (isinstance(ttl, (int, float)) and 0 < ttl <= _MOST_TTL_S):
        raise LimboError(
            "bad_argument",
            f"ttl cannot be {ttl!r}. Use seconds, above 0 and at most {_MOST_TTL_S:,} (366 days), "
            "or None.",
        )
    parameter = isinstance(tensor, torch.nn.Parameter)
    return reductions.KIND_PARAMETER if parameter else reductions.KIND_TENSOR


def refuse_of_transform(tensor: torch.Tensor, advice: str) -> None:
    """``bad_argument`` for what torch.func gives to a function that it transforms."""
    if reductions.is_of_transform(tensor):
        raise LimboError(
            "bad_argument",
            "The tensor is a transformed function's (torch.func.vmap, grad, functionalize), and "
            f"stands for others. {advice} outside of the transform.",
        )


def receive(
    data: bytes | bytearray | memoryview, device: int | str | torch.device | None = None
) -> torch.Tensor:
    """The tensor of a message: the sender's memory, not a copy.

    Works under any allocator. Two received tensors of one storage share one storage. The memory is
    given back behind the streams that used it when the last tensor on it dies; a stream other than
    the one that was current here is named by ``tensor.record_stream``. ``device``: open on another
    GPU than the owner's. Waits for the handshake with a producer's first message (at most 2 s) and
    for the driver with the first message of a piece of memory; blocks, as `share` does, where the
    current stream takes no more entries.

    Errors: ``bad_descriptor``, ``gone``, ``withdrawn``, ``expired``, ``producer_exited``,
    ``device_not_visible``, ``no_channel``, ``ledger_full``, ``device_error``, ``bad_argument``
    (``device``; the current stream is being captured into a graph: receive before that),
    ``forked_child``. After an error nothing is held.
    """
    _library.load()
    tensor = reductions.receive_tensor(data, device)
    with limbo_errors():
        kind = torch.ops.limbo.kind(reductions.tensor_of(data))
    return reductions.dressed(tensor, kind == reductions.KIND_PARAMETER, tensor.requires_grad)


def withdraw(data: bytes | bytearray | memoryview) -> None:
    """Take a message of this process back: who has not opened it gets ``withdrawn``; holders keep
    what they have. Errors: ``bad_descriptor``, ``bad_argument`` (a message of another process),
    ``no_channel`` (sent on, and its owner cannot be told)."""
    _library.load()
    with limbo_errors():
        torch.ops.limbo.withdraw(reductions.tensor_of(data))


def is_orphaned(tensor: torch.Tensor) -> bool:
    """Whether the process that lends this tensor has ended or lost its GPU context, or one that has
    sent it on had before its own work on it was done: no work of theirs will come. The tensor stays
    readable; what it holds may be unfinished. It may also still change, until that process has
    ended, where it lives on and has lost the context of one of several GPUs. Answers for what the
    current stream has passed: synchronise it first. False for a tensor that was not received; a
    ``clone()`` has no mark. Of memory that several messages have brought, any of them can mark it.

    Errors: ``bad_argument`` (no tensor, what ``torch.func`` gives to a function that it
    transforms), ``forked_child`` (of a received tensor).
    """
    if not isinstance(tensor, torch.Tensor):
        raise LimboError("bad_argument", f"A tensor is orphaned or not; this is {tensor!r}.")
    refuse_of_transform(tensor, "Ask")
    if not _library.available():
        return False
    with limbo_errors():
        return bool(torch.ops.limbo.is_orphaned(tensor))


def collect() -> bool:
    """Take back what receivers have let go of. True when anything came back. Never blocks.

    Not needed in ordinary programs: allocation collects by itself.
    """
    _library.load()
    with limbo_errors():
        return bool(torch.ops.limbo.collect())


def reap(force: bool = False, process: LendingProcess | None = None) -> Reaped:
    """Take back what receivers held that have ended. Not needed in ordinary programs.

    Memory of a receiver that has ended comes back by itself as soon as its GPU work is known to
    have ended; until then `holders` lists it as "quarantine" and says what it waits for. ``force``
    does not wait: you vouch that none of its GPU work runs any more (where it does, it will write
    into memory that is used again). It is the only way, besides this process's end, where that can
    never be known: the receiver had started CUDA, and a child with it, before it loaded Limbo.
    Receivers that live are never touched. ``process``: another process that lends is asked to do
    it, and answers within a second; errors then: ``producer_exited``, ``no_channel``.
    """
    if process is not None:
        _check_process(process)
        _library.load()
        with limbo_errors():
            return Reaped(*torch.ops.limbo.reap_in(process.incarnation, bool(force)))
    leases, claims = ctypes.c_int64(), ctypes.c_int64()
    library = _library.load()
    _library.check(library.limbo_reap(int(bool(force)), ctypes.byref(leases), ctypes.byref(claims)))
    return Reaped(leases.value, claims.value)


def holders(process: LendingProcess | None = None) -> list[Holder]:
    """Who holds what this process has lent, or what ``process`` has, which is asked for it.

    Another process answers within a second; errors then: ``producer_exited``, ``no_channel``.
    """
    if process is None:
        rows = _library.json_of(_library.load().limbo_holders_json())
    else:
        _check_process(process)
        _library.load()
        with limbo_errors():
            rows = json.loads(torch.ops.limbo.holders_of(process.incarnation))
    return [Holder(**row) for row in rows]


def _check_process(process: LendingProcess) -> None:
    if not isinstance(process, LendingProcess):
        raise LimboError(
            "bad_argument", f"A process is one of torch_limbo.processes(), and this is {process!r}."
        )


def own_incarnation() -> str:
    """What names this run of this process among others: 32 hexadecimal digits."""
    return _library.text_of(_library.load().limbo_incarnation())


def processes() -> list[LendingProcess]:
    """The living processes of this user that lend, this one too if it does."""
    _library.load()
    with limbo_errors():
        rows = json.loads(torch.ops.limbo.processes())
    return [LendingProcess(**row) for row in rows]


def stats() -> dict[str, Any]:
    """Numbers about lending and receiving, and about memory.

    ====================== ================================================================
    name                   what
    ====================== ================================================================
    exports_open           messages of this process that are not over
    in_flight              promises of these that nobody has come for yet
    held_claims            holds of others on them, as far as noted
    sends                  messages made, since the start, as the next four
    forwards               messages made for those who send on what they hold
    closed                 messages that are over
    expired                those whose time limit had passed
    withdrawn              those that were taken back
    forwarders             processes that have sent on what is not over yet
    leases_connected       living processes that are connected to this one
    leases_quarantined     ended ones whose GPU work may still run
    leases_swept           ended ones whose memory has come back, since the start
    claims_swept           what these held
    receives               messages opened here, since the start
    releases               those let go of, since the start
    releases_pending       releases that this process's GPU has not passed yet
    double_releases        second releases of one block, which do nothing
    pieces_mapped          other processes' segments that are mapped here
    opens, closes          mappings made and taken away by the driver, since the start
    forwarders_met         others, alive, that have sent on what was opened here
    limbo_blocks           blocks freed here and still lent
    limbo_bytes            their memory
    held_for_readers_bytes free memory that stays reserved because other processes map it
    allocated_bytes        as torch's statistics have it; so the next two
    active_bytes           allocated, in limbo, or waiting for a stream
    reserved_bytes         taken from the driver
    ====================== ================================================================

    Those about memory, from ``limbo_blocks`` on, are sums over all devices; under ``devices`` they
    stand for each visible device, whether it was used or not. In a process that has used none yet
    all are 0, and ``devices`` is empty.
    """
    numbers = _library.json_of(_library.load().limbo_stats_json())
    result: dict[str, Any] = dict(numbers["sharing"])
    devices = numbers["devices"]
    for name in (
        "limbo_blocks",
        "limbo_bytes",
        "held_for_readers_bytes",
        "allocated_bytes",
        "active_bytes",
        "reserved_bytes",
    ):
        result[name] = sum(device[name] for device in devices)
    result["devices"] = devices
    return result


def options() -> list[Option]:
    """Every option with its unit, range, default and present value.

    Errors: ``unknown_option`` for a variable ``LIMBO_<OPTION>`` that cannot be read,
    ``no_library``, ``wrong_torch``.
    """
    rows = _library.json_of(_library.load().limbo_options_json())
    return [Option(**row) for row in rows]


class _ExitDrain:
    """At the end of a ``multiprocessing`` child, waits until what it has just sent is mapped.

    Forked and from a fork server, such a process ends without ``atexit``, where the library waits
    in others, but it runs these finalizers; this one comes after those of the queues, which flush
    what is still to be sent. A spawned one runs ``atexit``: where this is registered, too (the
    package was imported in the child's own work, not with its main module), both together wait no
    longer than ``exit_drain_ms``. What a DataLoader's worker has sent and nobody will open is taken
    back before, on both ways.
    """

    _AFTER_QUEUES = -100

    def __init__(self) -> None:
        # A forked child starts with an empty list of finalizers, and then calls these.
        multiprocessing.util.register_after_fork(self, _ExitDrain._register)
        if multiprocessing.parent_process() is not None:
            self._register()
        atexit.register(workers.take_back_unopened)

    def _register(self) -> None:
        multiprocessing.util.Finalize(self, _ExitDrain._drain, exitpriority=self._AFTER_QUEUES)

    @staticmethod
    def _drain() -> None:
        workers.take_back_unopened()
        if _library.is_loaded():
            _library.load().limbo_drain_before_exit()


_exit_drain = _ExitDrain()
