"""What tests let another process do (tests/python/peer.py). Module state lives in that process."""

from __future__ import annotations

import ctypes
import functools
import gc
import time

import torch
import torch_limbo

MIB = 1 << 20

#: What this process holds, by the name that the test gave it.
HELD: dict[str, torch.Tensor] = {}

#: Pinned: while it is 0, the stream of make_gated() stands still.
_gate: torch.Tensor | None = None

#: About 50 ms on a GPU of 2 GHz.
SOME_CYCLES = 100_000_000


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def begin() -> None:
    """Make Limbo the allocator and start CUDA, so that no test waits for a kernel to be loaded."""
    torch_limbo.enable()
    torch.cuda.init()
    assert torch.cuda.get_allocator_backend() == "limbo"
    for device in range(torch.cuda.device_count()):
        HELD["warm-up"] = torch.zeros(64, dtype=torch.int32, device=f"cuda:{device}")
        fill("warm-up", 1)
        HELD["warm-up"].add_(1)
        assert values("warm-up") == (2, 2)
        with torch.cuda.device(device):
            torch.cuda._sleep(1)
    drop("warm-up")


def held() -> list[str]:
    """What a test has left here."""
    return list(HELD)


def uuids() -> list[str]:
    count = torch.cuda.device_count()
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]


def make(name: str, value: int, mib: int = 4, device: int = 0, late: bool = False) -> bytes:
    """A tensor of one value and a message that lends it; with `late`, the value is written behind
    work that still runs when this returns."""
    shape = (mib * MIB // 4,)
    with torch.cuda.device(device):
        if late:
            HELD[name] = torch.zeros(shape, dtype=torch.int32, device=f"cuda:{device}")
            torch.cuda._sleep(SOME_CYCLES)
            HELD[name].fill_(value)
        else:
            HELD[name] = torch.full(shape, value, dtype=torch.int32, device=f"cuda:{device}")
        return torch_limbo.share(HELD[name])


def make_gated(name: str, value: int, device: int = 0) -> bytes:
    """A tensor of zeros and a message that lends it; `value` is written when open_gate() is called,
    and the stream's work stands still until then."""
    global _gate
    with torch.cuda.device(device):
        HELD[name] = torch.zeros(MIB, dtype=torch.int32, device=f"cuda:{device}")
        _gate = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        address = ctypes.c_uint64(_gate.data_ptr())
        at_least_one = (ctypes.c_uint32(1), ctypes.c_uint(0))
        result = _driver().cuStreamWaitValue32_v2(stream, address, *at_least_one)
        assert result == 0, f"cuStreamWaitValue32: {result}"
        HELD[name].fill_(value)
        return torch_limbo.share(HELD[name])


def open_gate() -> None:
    """Called again, or where there is none, it does nothing."""
    if _gate is not None:
        _gate[0] = 1


def open_unread(name: str, message: bytes, device: int | None = None) -> tuple[int, bool]:
    """Open a message and do not look at the values; the device, and whether its current stream
    waits for somebody."""
    HELD[name] = torch_limbo.receive(message, device)
    index = HELD[name].device.index
    return index, not torch.cuda.current_stream(index).query()


def send_on(name: str, added: int = 0) -> bytes:
    """The message, after adding."""
    with torch.cuda.device(HELD[name].device):
        if added:
            HELD[name].add_(added)
        return torch_limbo.share(HELD[name])


def receive(name: str, message: bytes, device: int | None = None) -> tuple[int, int, int]:
    """Open a message at once; the device that it came on, and the least and the greatest value."""
    tensor = torch_limbo.receive(message, device)
    HELD[name] = tensor
    return (tensor.device.index, *values(name))


def code_of_receiving(message: bytes, device: int | None = None) -> tuple[str, str]:
    """The code and the text of the error that opening gives; "" if it opens."""
    try:
        torch_limbo.receive(message, device)
    except torch_limbo.LimboError as error:
        return error.code, str(error)
    return "", ""


def values(name: str) -> tuple[int, int]:
    """The least and the greatest, read behind the current stream's work on the tensor's GPU."""
    least, greatest = torch.aminmax(HELD[name])
    return int(least), int(greatest)


def add_late(name: str, value: int) -> bytes:
    """Add behind work that still runs when this returns, and send on; the message."""
    tensor = HELD[name]
    with torch.cuda.device(tensor.device):
        torch.cuda._sleep(SOME_CYCLES)
        tensor.add_(value)
        return torch_limbo.share(tensor)


def fill(name: str, value: int) -> None:
    HELD[name].fill_(value)
    torch.cuda.synchronize(HELD[name].device)


def address(name: str) -> int:
    return HELD[name].data_ptr()


def device_by_driver(name: str) -> int:
    """The GPU that the tensor's address belongs to, as the driver knows it: of a mapping the one
    that it was made for, whichever GPU the memory is on."""
    device = ctypes.c_int(-1)
    ordinal = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    result = _driver().cuPointerGetAttribute(
        ctypes.byref(device), ctypes.c_int(ordinal), ctypes.c_uint64(address(name))
    )
    assert result == 0, f"cuPointerGetAttribute: {result}"
    return device.value


def drop(*names: str) -> None:
    for name in names:
        del HELD[name]
    gc.collect()


def all_is_back(seconds: float = 20.0) -> dict[str, int]:
    """Wait until nothing that was lent and freed is out, and all memory is back with the driver;
    what is left: zeros."""
    gc.collect()
    end = time.monotonic() + seconds
    while True:
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        torch_limbo.collect()
        torch.cuda.empty_cache()
        numbers = torch_limbo.stats()
        left = {
            name: int(numbers[name])
            for name in ("limbo_blocks", "active_bytes", "reserved_bytes", "in_flight")
        }
        if not any(left.values()) or time.monotonic() > end:
            return left
        time.sleep(0.002)


def in_limbo() -> int:
    torch_limbo.collect()
    return int(torch_limbo.stats()["limbo_blocks"])


def mapped_pieces() -> int:
    return int(torch_limbo.stats()["pieces_mapped"])
