"""More than there is: torch's own OutOfMemoryError, and the allocator goes on."""

from __future__ import annotations

import torch
from common import report, run


def attempt(size_bytes: int) -> tuple[str, str]:
    try:
        torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        return type(error).__name__, str(error)
    except BaseException as error:
        return type(error).__name__, str(error)
    return "", ""


def main() -> int:
    import torch_limbo

    torch_limbo.enable()
    total = torch.cuda.get_device_properties(0).total_memory
    too_much, text = attempt(2 * total)
    absurd, _ = attempt(1 << 60)
    small = torch.full((1 << 20,), 7, dtype=torch.uint8, device="cuda")
    works = bool((small == 7).all())
    ooms = torch.cuda.memory_stats()["num_ooms"]
    del small
    # Almost everything, twice: the second fails, and works when the first is gone.
    free, _ = torch.cuda.mem_get_info()
    big = torch.empty(int(free * 0.6), dtype=torch.uint8, device="cuda")
    second, _ = attempt(int(free * 0.6))
    del big
    retry, retry_text = attempt(int(free * 0.6))
    report(
        too_much=too_much,
        text=text,
        absurd=absurd,
        works=works,
        ooms=ooms,
        second=second,
        retry=retry,
        retry_text=retry_text,
        allocated=torch.cuda.memory_allocated(),
    )
    return 0


if __name__ == "__main__":
    run(main)
