"""How CUDA tensors travel through ``torch.multiprocessing``: as descriptors of Limbo.

Importing the package puts Limbo in front of three functions of
``torch.multiprocessing.reductions``: ``reduce_tensor``, ``rebuild_cuda_tensor`` and
``reduce_storage``. A tensor whose memory Limbo allocated, outside of private pools, is sent as a
descriptor; every other one takes torch's own way.

Programs treat that module freely: they take its functions by ``from ... import``, put functions of
their own in their place, and run ``init_reductions()`` again. So each function keeps its identity
and gets a body that asks Limbo first (``replaced.py``): whoever holds one, by whatever way, holds
Limbo's.

A reduced CUDA tensor is a pair of a function and fifteen positional arguments, in the positions of
torch's ``rebuild_cuda_tensor``. Programs take that tuple apart too:

===== ======================= ==============================================================
index torch's name            Limbo's value
===== ======================= ==============================================================
0     tensor_cls              as torch
1     tensor_size             as torch
2     tensor_stride           as torch
3     tensor_offset           as torch
4     storage_cls             ``LimboStorage``
5     dtype                   as torch
6     storage_device          a ``DeviceByUuid``: the sender's index, and an ``int`` to whoever
                              looks. Untouched it means the sender's GPU whatever its index here;
                              any other value (an index, a ``torch.device``, a UUID's string) is
                              meant as it stands
7     storage_handle          the descriptor, bytes; None for a storage of size 0
8     storage_size_bytes      as torch
9     storage_offset_bytes    0: the descriptor says where the storage lies
10    requires_grad           as torch
11-14 counters, event         empty: the descriptor does their work
===== ======================= ==============================================================

Indices 4 and 6 are classes of this package. Whoever unpickles them imports it by that, and can send
on; an unpickler that allows modules by name has to allow ``torch_limbo``.

A pickle that fails halfway takes back what it has shared: ``ForkingPickler.dump`` sees to that.

All functions are thread-safe. In a child that was forked after its parent had used the GPU they
raise torch's own error or ``forked_child``.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions as torch_reductions
from torch._namedtensor_internals import check_serializing_named_tensor

from . import _library, workers
from .devices import by_uuid, device_argument, index_for_empty
from .errors import LimboError, limbo_errors
from .replaced import put_in_front

KIND_TENSOR = 0
KIND_PARAMETER = 1

#: False after ``enable(multiprocessing="stock")``: then nothing is sent by descriptor.
_sends_by_descriptor = True


def bytes_of(message: torch.Tensor) -> bytes:
    """The bytes of a one-dimensional uint8 tensor on the CPU."""
    return ctypes.string_at(message.data_ptr(), message.numel())


def tensor_of(data: bytes | bytearray | memoryview) -> torch.Tensor:
    """A uint8 tensor with a copy of the bytes, as the operators take them."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise LimboError(
            "bad_argument",
            f"A message is bytes, as share returns them, and this is a {type(data).__name__}.",
        )
    if len(data) == 0:
        with _real_tensors():
            return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _is_readable(message: torch.Tensor) -> bool:
    """Whether the message says what it holds; asks without claiming anything."""
    _library.load()
    try:
        torch.ops.limbo.kind(message)
    except RuntimeError:
        return False
    return True


def _open(name: str, descriptor: bytes | bytearray | memoryview, device: Any) -> torch.Tensor:
    """What the operator `name` makes of a message.

    One that cannot be read is refused by the operator, which tells its sender, and nobody has to
    start CUDA for it.
    """
    message = tensor_of(descriptor)
    if torch.cuda.is_initialized() or _is_readable(message):
        index = device_argument(device)
        _library.start_cuda()
    else:
        index = -1
    with limbo_errors():
        opened: torch.Tensor = getattr(torch.ops.limbo, name)(message, index)
    return opened


class LimboStorage:
    """The storage class of a reduced tensor: what torch's ``rebuild_cuda_tensor`` calls.

    It is never an object of its own: calling it, and both class methods, give torch's storages.
    """

    def __new__(cls, *size: int, device: Any = None, **_: Any) -> Any:
        """An empty storage on `device`: the only size that comes without a descriptor."""
        if any(size):
            raise LimboError("bad_argument", "A received storage is made from a descriptor.")
        _library.start_cuda()
        return empty_tensor(torch.uint8, index_for_empty(device)).untyped_storage()

    @classmethod
    def _new_shared_cuda(
        cls, device: Any, handle: bytes, *_: Any, **__: Any
    ) -> torch.UntypedStorage:
        return receive_storage(handle, device)

    @classmethod
    def _release_ipc_counter(cls, *_: Any, **__: Any) -> None:
        """Nothing to do: a message that one process opens twice counts once."""


@contextlib.contextmanager
def _real_tensors() -> Iterator[None]:
    """A context in which torch's functions make and change tensors that have memory, whatever mode
    or transform the program is in: in FakeTensorMode they would make others, and inside of
    torch.func.grad some that stand for others."""
    with torch._C._DisableTorchDispatch(), torch._C._DisableFuncTorch():
        yield


def empty_tensor(dtype: torch.dtype, device: int) -> torch.Tensor:
    """A tensor without elements on a GPU, by its index."""
    if _library.simulated():
        made: torch.Tensor = torch.ops.limbo.sim_empty([0], dtype=dtype, device=device)
        return made
    with _real_tensors():
        return torch.empty(0, dtype=dtype, device=torch.device("cuda", device))


def _over_storage(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    made = empty_tensor(dtype, storage.device.index or 0)
    with _real_tensors():
        made.set_(storage, offset, size, stride)
    return made


def is_of_transform(tensor: torch.Tensor) -> bool:
    """Whether it is what ``torch.func`` gives to a transformed function (vmap, grad and the like),
    which stands for other tensors and has no memory of its own."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _goes_by_descriptor(tensor: torch.Tensor) -> bool:
    if not _sends_by_descriptor or not _library.available():
        return False
    if not tensor.is_cuda or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if is_of_transform(tensor):
        return False
    if tensor.untyped_storage().nbytes() == 0:
        return bool(_library.load().limbo_torch_installed()) or _library.simulated_is_chosen()
    limbo = torch.ops.limbo
    return bool(limbo.is_limbo(tensor)) or bool(limbo.is_received(tensor))


def reduce_tensor(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The pair that ``ForkingPickler`` sends for a tensor.

    Errors: RuntimeError for a non-leaf that requires grad and for named tensors, as torch; as
    ``share``.
    """
    if (tensor.requires_grad and not tensor.is_leaf) or not _goes_by_descriptor(tensor):
        reduced: tuple[Callable[..., Any], tuple[Any, ...]] = _stock_reduce_tensor(tensor)
        return reduced
    check_serializing_named_tensor(tensor)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    storage_size_bytes = tensor.untyped_storage().nbytes()
    descriptor = None
    if storage_size_bytes != 0:
        kind = KIND_PARAMETER if isinstance(tensor, torch.nn.Parameter) else KIND_TENSOR
        with limbo_errors():
            message = torch.ops.limbo.share(tensor, 1, None, kind)
        _note_in_pickle(message)
        descriptor = bytes_of(message)
    arguments = (
        type(tensor),
        tensor.size(),
        tensor.stride(),
        tensor.storage_offset(),
        LimboStorage,
        tensor.dtype,
        by_uuid(tensor.device),
        descriptor,
        storage_size_bytes,
        0,
        tensor.requires_grad,
        b"",
        0,
        b"",
        False,
    )
    # The module's function of this moment: a program may have put its own there.
    return (torch_reductions.rebuild_cuda_tensor, arguments)


def rebuild_cuda_tensor(*arguments: Any) -> torch.Tensor:
    """The tensor of fifteen arguments; those of a storage class other than Limbo's are torch's.

    Errors: as ``receive``.
    """
    if len(arguments) != 15 or arguments[4] is not LimboStorage:
        stock: torch.Tensor = _stock_rebuild_cuda_tensor(*arguments)
        return stock
    tensor_cls, size, stride, offset, _, dtype, device, descriptor = arguments[:8]
    storage_size_bytes, requires_grad = arguments[8], arguments[10]
    if descriptor is None or storage_size_bytes == 0:
        _library.start_cuda()
        nothing = empty_tensor(dtype, index_for_empty(device)).untyped_storage()
        tensor = _over_storage(nothing, dtype, offset, tuple(size), tuple(stride))
    else:
        tensor = receive_tensor(descriptor, device)
        described = (tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())
        if described != (dtype, size, stride, offset):  # somebody changed the arguments: theirs
            tensor = _laid_out_anew(tensor, dtype, offset, tuple(size), tuple(stride))
    return dressed(tensor, tensor_cls is torch.nn.Parameter, requires_grad)


def _laid_out_anew(
    tensor: torch.Tensor,
    dtype: torch.dtype,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """Another tensor over the same storage, conjugating and negating as this one does."""
    made = _over_storage(tensor.untyped_storage(), dtype, offset, size, stride)
    with _real_tensors():
        if tensor.is_conj() and made.is_complex():
            made = made.conj()
        return torch._neg_view(made) if tensor.is_neg() else made


def dressed(tensor: torch.Tensor, parameter: bool, requires_grad: bool) -> torch.Tensor:
    """The tensor as its sender had it: a Parameter or not, requiring grad or not."""
    if parameter:
        with _real_tensors():
            return torch.nn.Parameter(tensor.detach(), requires_grad=requires_grad)
    if tensor.requires_grad != requires_grad:
        tensor.requires_grad = requires_grad  # requires_grad_ is refused inside of a transform
    return tensor


def receive_tensor(descriptor: bytes | bytearray | memoryview, device: Any) -> torch.Tensor:
    """Open a message of ``share``; see ``api.receive``."""
    return _open("receive", descriptor, device)


def receive_storage(
    descriptor: bytes | bytearray | memoryview, device: Any
) -> torch.UntypedStorage:
    """Open a message of a tensor or a storage; the whole storage."""
    tensor = _open("receive_storage", descriptor, device)
    storage: torch.UntypedStorage = tensor.untyped_storage()
    return storage


def reduce_storage(storage: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The pair for an untyped storage (typed ones come here by the one inside them)."""
    untyped = storage.untyped() if isinstance(storage, torch.TypedStorage) else storage
    if untyped.is_cuda and _sends_by_descriptor and _library.available():
        whole = _over_storage(untyped, torch.uint8, 0, (untyped.nbytes(),), (1,))
        if _goes_by_descriptor(whole):
            device = by_uuid(untyped.device)
            if untyped.nbytes() == 0:
                return (rebuild_storage, (None, device))
            with limbo_errors():
                message = torch.ops.limbo.share_storage(whole, 1, None)
            _note_in_pickle(message)
            return (rebuild_storage, (bytes_of(message), device))
    reduced: tuple[Callable[..., Any], tuple[Any, ...]] = _stock_reduce_storage(storage)
    return reduced


def rebuild_storage(descriptor: bytes | None, device: Any) -> torch.UntypedStorage:
    """The storage of what ``reduce_storage`` sent."""
    if descriptor is None:
        empty: torch.UntypedStorage = LimboStorage(0, device=device)
        return empty
    return receive_storage(descriptor, device)


def _body_of_reduce_tensor(tensor):  # type: ignore[no-untyped-def]
    from torch_limbo import reductions as limbo

    return limbo.reduce_tensor(tensor)


def _body_of_reduce_storage(storage):  # type: ignore[no-untyped-def]
    from torch_limbo import reductions as limbo

    return limbo.reduce_storage(storage)


def _body_of_rebuild_cuda_tensor(  # type: ignore[no-untyped-def]
    tensor_cls,
    tensor_size,
    tensor_stride,
    tensor_offset,
    storage_cls,
    dtype,
    storage_device,
    storage_handle,
    storage_size_bytes,
    storage_offset_bytes,
    requires_grad,
    ref_counter_handle,
    ref_counter_offset,
    event_handle,
    event_sync_required,
):
    from torch_limbo import reductions as limbo

    return limbo.rebuild_cuda_tensor(
        tensor_cls,
        tensor_size,
        tensor_stride,
        tensor_offset,
        storage_cls,
        dtype,
        storage_device,
        storage_handle,
        storage_size_bytes,
        storage_offset_bytes,
        requires_grad,
        ref_counter_handle,
        ref_counter_offset,
        event_handle,
        event_sync_required,
    )


def _put_in_front(name: str, body: Callable[..., Any], ours: Callable[..., Any]) -> Any:
    stock, by_name = put_in_front(torch_reductions, name, body, ours)
    if by_name:
        torch_reductions.init_reductions()  # the pickler's table must learn of it
    return stock


_stock_reduce_tensor = _put_in_front("reduce_tensor", _body_of_reduce_tensor, reduce_tensor)
_stock_reduce_storage = _put_in_front("reduce_storage", _body_of_reduce_storage, reduce_storage)
_stock_rebuild_cuda_tensor = _put_in_front(
    "rebuild_cuda_tensor", _body_of_rebuild_cuda_tensor, rebuild_cuda_tensor
)


class _Pickle(threading.local):
    """What the pickle that this thread is making has shared so far; None: it makes none."""

    messages: list[torch.Tensor] | None = None


_pickle = _Pickle()


def _note_in_pickle(message: torch.Tensor) -> None:
    workers.note(message)
    if _pickle.messages is not None:
        _pickle.messages.append(message)


def _dump_or_take_back(pickler: ForkingPickler, obj: Any) -> Any:
    """``ForkingPickler.dump``. Where it fails, nobody will open what it has shared."""
    outer = _pickle.messages
    mine: list[torch.Tensor] = []
    _pickle.messages = mine
    try:
        return _stock_dump(pickler, obj)
    except BaseException:
        for message in mine:
            with contextlib.suppress(RuntimeError):  # else it ends by its time limit
                torch.ops.limbo.withdraw(message)
        raise
    finally:
        _pickle.messages = outer


# The package may be imported anew: then what stands there is its own.
_stock_dump = getattr(ForkingPickler.dump, "_limbo_stock", ForkingPickler.dump)
_dump_or_take_back._limbo_stock = _stock_dump  # type: ignore[attr-defined]
ForkingPickler.dump = _dump_or_take_back  # type: ignore[method-assign, assignment]


def send_by_descriptor(on: bool) -> None:
    """Whether tensors of Limbo are sent by descriptor (as after import) or torch's own way."""
    global _sends_by_descriptor
    _sends_by_descriptor = on
