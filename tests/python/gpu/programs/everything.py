"""A training program that uses what torch builds on its allocator, in one process.

    everything.py native|limbo [--out FOLDER]

A small transformer with a convolution in front, AdamW and mixed precision: trained eagerly, with
activations in a MemPool, as a captured CUDA graph, compiled with mode="reduce-overhead", and with
cuDNN's benchmark mode; all the while the memory history is recorded. Prints what it saw, writes the
history and the pages that torch.cuda._memory_viz makes of it into FOLDER, and ends with one RESULT
line for the test that compares both allocators.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.amp.grad_scaler import GradScaler
from torch.cuda import _memory_viz
from torch.nn.attention import SDPBackend, sdpa_kernel

STEPS = 12
BATCH, SIDE, CHANNELS, CLASSES = 16, 32, 64, 10
MIB = 1 << 20


class Model(torch.nn.Module):
    """Images are cut into patches by a convolution, which a transformer classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, CHANNELS, 4, stride=4)
        self.places = torch.nn.Parameter(torch.zeros((SIDE // 4) ** 2, CHANNELS))
        layer = torch.nn.TransformerEncoderLayer(
            CHANNELS, 4, 4 * CHANNELS, dropout=0.0, batch_first=True
        )
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        result: torch.Tensor = self.out(self.encoder(tokens).mean(dim=1))
        return result


class Trainer:
    """One model from the same start each time, with its optimizer and data."""

    def __init__(self, capturable: bool = False) -> None:
        torch.manual_seed(0)
        self.model: Any = Model().cuda()
        self.call: Any = self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, capturable=capturable)
        self.scaler = GradScaler("cuda", init_scale=256.0)
        generator = torch.Generator(device="cuda").manual_seed(1)
        self.images = torch.randn(STEPS, BATCH, 3, SIDE, SIDE, device="cuda", generator=generator)
        # Something to learn: which tenth of the range the mean of the first patch falls into.
        means = self.images[:, :, 0, :4, :4].mean(dim=(-1, -2))
        self.classes = ((4 * means).sigmoid() * CLASSES).long().clamp(0, CLASSES - 1)

    def loss(self, step: int) -> torch.Tensor:
        return self.loss_of(self.images[step], self.classes[step])

    def loss_of(self, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            scores = self.call(images)
        return torch.nn.functional.cross_entropy(scores.float(), classes)

    def update(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


def eager() -> list[float]:
    trainer = Trainer()
    losses = []
    for step in range(STEPS):
        loss = trainer.loss(step)
        trainer.update(loss)
        losses.append(loss.item())
    return losses


def with_a_pool() -> list[float]:
    """Forward passes allocate in a MemPool; what they leave is freed from outside of it."""
    trainer = Trainer()
    pool = torch.cuda.MemPool()
    losses = []
    for step in range(STEPS):
        with torch.cuda.use_mem_pool(pool):
            loss = trainer.loss(step)
        trainer.update(loss)
        losses.append(loss.item())
    held = sum(segment["total_size"] for segment in pool.snapshot())
    print(f"  the pool {pool.id} held {held / MIB:.0f} MiB, use count {pool.use_count()}")
    del loss, trainer
    return losses


def as_a_graph() -> list[float]:
    """Forward and backward pass as one CUDA graph, replayed on new data."""
    trainer = Trainer(capturable=True)
    images, classes = trainer.images[0].clone(), trainer.classes[0].clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            trainer.scaler.scale(trainer.loss_of(images, classes)).backward()
            trainer.optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = trainer.loss_of(images, classes)
        trainer.scaler.scale(loss).backward()
    losses = []
    for step in range(STEPS):
        images.copy_(trainer.images[step])
        classes.copy_(trainer.classes[step])
        graph.replay()
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
        losses.append(loss.item())
    return losses


def missing_for_compile() -> str:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        return "there is no C compiler in PATH"
    return ""


def compiled() -> list[float]:
    """Compiled with CUDA graphs; afterwards inference by the same compiled model."""
    trainer = Trainer()
    trainer.call = torch.compile(trainer.model, mode="reduce-overhead")
    losses = []
    for step in range(STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        loss = trainer.loss(step)
        trainer.update(loss)
        losses.append(loss.item())
    trainer.model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        for step in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            scores = trainer.call(trainer.images[step]).float()
            plain = trainer.model(trainer.images[step]).float()
            if not torch.allclose(scores, plain, atol=3e-2):
                raise AssertionError("compiled inference differs from the plain one")
    private = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
    print(f"  {len(private)} segments of private pools")
    del loss, scores, plain
    torch._dynamo.reset()
    return losses


def with_benchmark() -> list[float]:
    """cuDNN tries its algorithms, which asks the allocator how much there is (cacheInfo)."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = False
    torch.use_deterministic_algorithms(False)
    try:
        return eager()
    finally:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


@contextmanager
def annotated(name: str) -> Iterator[None]:
    torch.cuda.memory._set_memory_metadata(name)
    with torch.profiler.record_function(name):
        yield
    torch.cuda.memory._set_memory_metadata("")


def look_at_the_history(folder: Path) -> dict[str, Any]:
    file = folder / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))
    with file.open("rb") as stored:
        snapshot = pickle.load(stored)
    entries = [entry for device in snapshot["device_traces"] for entry in device]
    actions: dict[str, int] = {}
    for entry in entries:
        actions[entry["action"]] = actions.get(entry["action"], 0) + 1
    noted = sorted({entry.get("user_metadata", "") for entry in entries} - {""})
    with_frames = sum(bool(entry.get("frames")) for entry in entries)
    print(f"history: {len(entries)} entries, {with_frames} with stacks: {actions}")
    print(f"  metadata seen: {noted}")
    print("\n".join(_memory_viz.segsum(snapshot).splitlines()[:12]))
    pages = {
        "segments.html": _memory_viz.segment_plot(snapshot),
        "trace.html": _memory_viz.trace_plot(snapshot),
    }
    for name, page in pages.items():
        (folder / name).write_text(page)
    print(f"  {', '.join(f'{name} {len(page) >> 10} KiB' for name, page in pages.items())}")
    return {"actions": sorted(actions), "metadata": noted, "frames": with_frames}


def check_the_numbers() -> dict[str, bool]:
    numbers = torch.cuda.memory_stats()
    segments = torch.cuda.memory_snapshot()
    blocks = [block for segment in segments for block in segment["blocks"]]
    return {
        "reserved": numbers["reserved_bytes.all.current"]
        == sum(segment["total_size"] for segment in segments),
        "allocated": numbers["allocated_bytes.all.current"]
        == sum(block["size"] for block in blocks if block["state"] == "active_allocated"),
        "active": numbers["active.all.current"]
        == sum(block["state"] != "inactive" for block in blocks),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("allocator", choices=["native", "limbo"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="limbo-everything-"))
    folder.mkdir(parents=True, exist_ok=True)
    if options.allocator == "limbo":
        import torch_limbo

        torch_limbo.enable()
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.memory._record_memory_history(
        "all", max_entries=200_000, stacks="python", global_record_annotations=True
    )
    print(f"{torch.cuda.get_allocator_backend()} on {torch.cuda.get_device_name()}")
    phases: list[tuple[str, Callable[[], list[float]]]] = [
        ("eager", eager),
        ("MemPool", with_a_pool),
        ("CUDA graph", as_a_graph),
        ("reduce-overhead", compiled),
        ("cuDNN benchmark", with_benchmark),
    ]
    lacking = missing_for_compile()
    results: dict[str, list[float]] = {}
    with sdpa_kernel(SDPBackend.MATH):  # the others may add in another order each time
        for name, phase in phases:
            if phase is compiled and lacking:
                print(f"{name}: not run, {lacking}")
                continue
            torch.cuda.reset_peak_memory_stats()
            start = time.monotonic()
            with annotated(name):
                results[name] = phase()
            torch.cuda.synchronize()
            print(
                f"{name}: loss {results[name][0]:.4f} to {results[name][-1]:.4f}, peak "
                f"{torch.cuda.max_memory_allocated() / MIB:.0f} MiB allocated, "
                f"{torch.cuda.max_memory_reserved() / MIB:.0f} MiB reserved, "
                f"{time.monotonic() - start:.1f} s"
            )
            gc.collect()
    history = look_at_the_history(folder)
    print(torch.cuda.memory_summary(abbreviated=True))
    summary = torch.cuda.memory_summary()
    consistent = check_the_numbers()
    torch.cuda.memory._record_memory_history(None)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    print(f"left at the end: {torch.cuda.memory_allocated()} bytes allocated")
    print(
        "RESULT "
        + json.dumps(
            {
                "backend": torch.cuda.get_allocator_backend(),
                "losses": results,
                "lacking": lacking,
                "history": history,
                "consistent": consistent,
                "summary": "Allocated memory" in summary,
                "left": torch.cuda.memory_allocated(),
            }
        ),
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
