"""enable() after CUDA has been initialised (fine), and after memory was used (an error)."""

from __future__ import annotations

import subprocess
import sys

from common import report, run


def initialised_only() -> int:
    import torch
    import torch_limbo

    torch.cuda.init()
    torch.cuda.get_device_properties(0)
    torch_limbo.enable()
    tensor = torch.ones(3, device="cuda")
    return 0 if torch.cuda.get_allocator_backend() == "limbo" and float(tensor.sum()) == 3 else 1


def main() -> int:
    if sys.argv[1:] == ["initialised"]:
        return initialised_only()
    import torch
    import torch_limbo

    tensor = torch.ones(3, device="cuda")
    code, text = "", ""
    try:
        torch_limbo.enable()
    except torch_limbo.LimboError as error:
        code, text = error.code, str(error)
    fine = subprocess.run([sys.executable, __file__, "initialised"], check=False).returncode == 0
    report(code=code, text=text, fine_when_only_initialised=fine, sum=float(tensor.sum()))
    return 0


if __name__ == "__main__":
    run(main)
