"""Which GPU a message means: a sender's index stands for its GPU, whatever its index is here."""

from __future__ import annotations

from typing import Any

import torch

from . import _library
from .errors import LimboError


class DeviceByUuid(int):
    """A device index at its sender, which stands for "that GPU, whatever its index is here"."""

    uuid: str

    def __new__(cls, index: int, uuid: str = "") -> DeviceByUuid:
        made = super().__new__(cls, index)
        made.uuid = uuid
        return made

    def __reduce__(self) -> tuple[type[DeviceByUuid], tuple[int, str]]:
        return (type(self), (int(self), self.uuid))


_uuids: dict[int, str] = {}


def require_gpu(advice: str) -> None:
    """Raise ``device_error`` unless torch can use a GPU here."""
    if not torch.cuda.is_available():
        raise LimboError("device_error", f"There is no GPU that torch can use here. {advice}")


def by_uuid(device: torch.device) -> DeviceByUuid:
    index = device.index or 0
    if index not in _uuids:
        known = not _library.simulated_is_chosen()
        _uuids[index] = str(torch.cuda.get_device_properties(index).uuid) if known else ""
    return DeviceByUuid(index, _uuids[index])


def index_for_empty(device: Any) -> int:
    """Where to make a storage of size 0, which has no descriptor to name the GPU."""
    if not isinstance(device, DeviceByUuid):
        return max(device_argument(device), 0)
    return _index_of_uuid(device.uuid) if device.uuid else int(device)


def device_argument(device: Any) -> int:
    """What the operators take as a device: an index, or -1 for "the owner's, by its UUID".

    Takes None, an index, a ``torch.device``, a string ("cuda:1", or a GPU's UUID).
    """
    if device is None or isinstance(device, DeviceByUuid):
        return -1
    if isinstance(device, int):
        if not 0 <= device < 2**31:
            raise LimboError(
                "bad_argument",
                f"There is no device {device}. Give an index from 0 on, or None for the owner's.",
            )
        return int(device)
    if isinstance(device, str) and _is_uuid(device):
        return _index_of_uuid(device)
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise LimboError("bad_argument", f"{device!r} does not name a CUDA device.") from error
    if named.type != "cuda":
        raise LimboError(
            "bad_argument",
            f"{named} is no CUDA device. Give a CUDA device, or None for the owner's.",
        )
    if named.index is not None:
        return int(named.index)
    return 0 if _library.simulated() else torch.cuda.current_device()


_KINDS = ("GPU-", "MIG-")


def _is_uuid(text: str) -> bool:
    """Whether a string is the UUID of a GPU or of a part of one (MIG), with "GPU-" or "MIG-" in
    front of it or not."""
    return text.startswith(_KINDS) or (len(text) == 36 and text.count("-") == 4)


def _bare(uuid: str) -> str:
    for kind in _KINDS:
        uuid = uuid.removeprefix(kind)
    return uuid.lower()


def _index_of_uuid(uuid: str) -> int:
    wanted = _bare(uuid)
    seen = []
    if not _library.simulated():
        for index in range(torch.cuda.device_count()):
            found = str(torch.cuda.get_device_properties(index).uuid)
            if _bare(found) == wanted:
                return index
            seen.append(found)
    raise LimboError(
        "device_not_visible",
        f"No GPU with the UUID {uuid} is visible to this process; visible are: "
        f"{', '.join(seen) or 'none'}. Make it visible (CUDA_VISIBLE_DEVICES), or name another "
        "device.",
    )
