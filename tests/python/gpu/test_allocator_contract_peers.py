"""Several GPUs: copies between them, and what is whose."""

from __future__ import annotations

import pytest
import torch
from contract import MIB, in_a_process

pytestmark = [
    pytest.mark.usefixtures("allocator"),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.mark.parametrize("mib", [1, 48])
def test_copies_between_gpus(mib: int) -> None:
    result = in_a_process(
        f"""
count = {mib} * MIB // 4
source = torch.arange(count, device="cuda:0", dtype=torch.int32)
there = source.to("cuda:1", non_blocking=True)
back = torch.empty(count, device="cuda:0", dtype=torch.int32)
back.copy_(there[: count // 2].repeat(2))
strided = source[::3].to("cuda:1")
torch.cuda.synchronize(0)
torch.cuda.synchronize(1)
report(
    there=bool((there.cpu() == torch.arange(count, dtype=torch.int32)).all()),
    back=bool((back.cpu() == torch.arange(count // 2, dtype=torch.int32).repeat(2)).all()),
    strided=bool((strided.cpu() == torch.arange(count, dtype=torch.int32)[::3]).all()),
    device=there.device.index,
)
"""
    )
    assert result == {"there": True, "back": True, "strided": True, "device": 1}


def test_each_gpu_has_its_own_numbers_and_limits() -> None:
    result = in_a_process(
        """
first = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda:0")
second = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda:1")
allocated = [torch.cuda.memory_allocated(device) // MIB for device in (0, 1)]
total = torch.cuda.mem_get_info(1)[1]
torch.cuda.set_per_process_memory_fraction(100.5 * MIB / total, 1)
try:
    torch.empty(80 * MIB, dtype=torch.uint8, device="cuda:1")
    refused = False
except torch.OutOfMemoryError as error:
    refused = "GPU 1 " in str(error)
other = torch.empty(80 * MIB, dtype=torch.uint8, device="cuda:0").numel() // MIB
report(allocated=allocated, refused=refused, other=other,
       fractions=[torch.cuda.get_per_process_memory_fraction(0),
                  torch.cuda.get_per_process_memory_fraction(1) < 0.1])
"""
    )
    assert result == {
        "allocated": [30, 50],
        "refused": True,
        "other": 80,
        "fractions": [1.0, True],
    }


def test_the_current_device_stays_as_it_was() -> None:
    result = in_a_process(
        f"""
torch.cuda.set_device(1)
tensors = [torch.ones(4 * {MIB}, device=f"cuda:{{index % 2}}") for index in range(6)]
del tensors
torch.cuda.empty_cache()
report(device=torch.cuda.current_device(), reserved=[torch.cuda.memory_reserved(d) for d in (0, 1)])
"""
    )
    assert result == {"device": 1, "reserved": [0, 0]}
