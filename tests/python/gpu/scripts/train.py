"""A small transformer trained for a few steps under one of several allocators.

train.py native | stock LIBRARY | enable | allocator
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from common import report, run
from torch.nn.attention import SDPBackend, sdpa_kernel

STEPS = 20


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, 128)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2)
        self.out = torch.nn.Linear(128, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.encoder(self.embed(tokens)))
        return result


def train() -> list[float]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        length = 32 + 16 * (step % 4)  # sizes change, so that blocks are split and reused
        tokens = torch.randint(0, 256, (8, length), device="cuda")
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 256), tokens.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def install(way: str) -> None:
    if way == "stock":
        stock = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[2], "limbo_malloc", "limbo_free")
        torch.cuda.memory.change_current_allocator(stock)
    elif way == "enable":
        import torch_limbo

        torch_limbo.enable()
    elif way == "allocator":
        import torch_limbo

        torch.cuda.memory.change_current_allocator(torch_limbo.LimboAllocator())
    elif way != "native":
        raise SystemExit(f"unknown way {way}")


def main() -> int:
    install(sys.argv[1])
    with sdpa_kernel(SDPBackend.MATH):  # the others may add in another order each time
        losses = train()
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory_snapshot()
    blocks = [block for segment in snapshot for block in segment["blocks"]]
    report(
        losses=losses,
        backend=torch.cuda.get_allocator_backend(),
        allocated=torch.cuda.memory_allocated(),
        peak=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.memory_reserved(),
        statistics=len(stats),
        requested=stats["requested_bytes.all.current"],
        summary="Allocated memory" in torch.cuda.memory_summary(),
        snapshot_reserved=sum(segment["total_size"] for segment in snapshot),
        snapshot_allocated=sum(
            block["size"] for block in blocks if block["state"] == "active_allocated"
        ),
        accelerator=torch.accelerator.memory_allocated(),
    )
    return 0


if __name__ == "__main__":
    run(main)
