"""NCCL's own memory for a pool has no handle: every way to send it is an error that says so."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import report


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:  # a LimboError, too
        return str(error)
    return "none"


def try_all(tensor: torch.Tensor) -> dict[str, Any]:
    """What each way to send it answers."""
    import torch_limbo

    code = "none"
    try:
        torch_limbo.share(tensor)
    except torch_limbo.LimboError as error:
        code = error.code
    copied = torch_limbo.share(tensor.clone())
    torch_limbo.withdraw(copied)
    return {
        "code": code,
        "by_torch": error_of(lambda: tensor.untyped_storage()._share_cuda_()),
        "pickled": error_of(lambda: ForkingPickler.dumps(tensor)),
        "whole": float(tensor.sum()),
    }


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        device = torch.device("cuda", 0)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
        backend = dist.distributed_c10d._get_default_group()._get_backend(device)
        try:
            pool = torch.cuda.MemPool(backend.mem_allocator)
        except RuntimeError as missing:  # this NCCL or this driver has none of its own
            report(missing=str(missing))
            return 0
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.ones(1 << 20, device=device)
        answers = try_all(tensor)
        del tensor, pool
        torch.cuda.empty_cache()
        dist.destroy_process_group()
    report(missing="", **answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
