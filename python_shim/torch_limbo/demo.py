"""The demo: a trainer lends its weights to an inference process, which is killed once.

The trainer is this process. After each step it puts a copy of its weights on an ``mp.Queue`` and
forgets it: the memory is lent, and comes back when the inference process has let go of it. The
inference process keeps the weights of the last two steps, checks every value, and is killed in the
middle while it holds them. What it held comes back by itself.

On a GPU the weights are a small model's, trained for real; on the simulated device, where torch's
kernels cannot run, they are tensors of the same shapes over the simulated GPU's memory.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing as mp

from . import _library, api
from .devices import require_gpu
from .errors import limbo_errors

#: The trainer waits for an answer of the inference process for this long, in seconds.
_ANSWER_S = 60.0
#: A killed process's memory must be back after this, in seconds.
_RETURN_S = 30.0

_SHAPES = {
    "embed.weight": (512, 128),
    "hidden.weight": (256, 128),
    "hidden.bias": (256,),
    "out.weight": (512, 256),
    "out.bias": (512,),
}


class GpuTrainer:
    """A small model on the GPU that learns to predict a token's successor."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._model = torch.nn.ModuleDict(
            {
                "embed": torch.nn.Embedding(512, 128),
                "hidden": torch.nn.Linear(128, 256),
                "out": torch.nn.Linear(256, 512),
            }
        ).cuda()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=3e-3)

    def step(self) -> str:
        """One step; what to tell about it."""
        tokens = torch.randint(0, 512, (256,), device="cuda")
        hidden = torch.relu(self._model["hidden"](self._model["embed"](tokens)))
        loss = torch.nn.functional.cross_entropy(self._model["out"](hidden), (tokens + 1) % 512)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return f"loss {loss.item():.3f}"

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of the weights, which the trainer will not write again."""
        return {name: value.detach().clone() for name, value in self._model.named_parameters()}


class SimulatedTrainer:
    """Weights over the simulated GPU's memory, changed a little by each step."""

    def __init__(self) -> None:
        self._step = 0

    def step(self) -> str:
        """One step; what to tell about it."""
        self._step += 1
        return "weights written"

    def weights(self) -> dict[str, torch.Tensor]:
        """Fresh tensors with this step's values."""
        made = {}
        for number, (name, shape) in enumerate(_SHAPES.items()):
            tensor = torch.ops.limbo.sim_empty(list(shape), dtype=torch.float32, device=0)
            torch.ops.limbo.sim_fill(tensor, self._step + number / 8)
            made[name] = tensor
        return made


def checksum(tensor: torch.Tensor) -> int:
    """A number that changes with any bit of the tensor and with the order of its words."""
    words = (torch.ops.limbo.sim_read(tensor) if _library.simulated() else tensor.cpu()).view(
        torch.int32
    )
    places = torch.arange(1, words.numel() + 1, dtype=torch.int64)
    return int((words.flatten().to(torch.int64) * places).sum())


def infer(queue: Any, answers: Connection) -> None:
    """The inference process: keeps the last two versions, checks what it gets, answers."""
    kept: list[tuple[dict[str, torch.Tensor], dict[str, int]]] = []
    while True:
        message = queue.get()
        if message is None:
            break
        step, weights, sums = message
        kept.append((weights, sums))
        del kept[:-2], weights, message
        # The older version is checked again: it must not have changed while it was held.
        wrong = sum(
            checksum(tensor) != expected[name]
            for version, expected in kept
            for name, tensor in version.items()
        )
        held = sum(len(version) for version, _ in kept)
        answers.send((step, wrong, held))
    kept.clear()
    gc.collect()
    answers.send(("done", 0, 0))


@dataclass
class _Inference:
    process: Any
    queue: Any
    answers: Connection

    @classmethod
    def start(cls) -> _Inference:
        context = mp.get_context("spawn")
        queue = context.Queue()
        ours, theirs = context.Pipe()
        process = context.Process(target=infer, args=(queue, theirs), name="inference")
        process.start()
        theirs.close()
        print(f"inference process {process.pid} started")
        return cls(process, queue, ours)

    def answer(self) -> tuple[Any, int, int]:
        if not self.answers.poll(_ANSWER_S):
            raise RuntimeError(f"the inference process gave no answer for {_ANSWER_S:.0f} s")
        got: tuple[Any, int, int] = self.answers.recv()
        return got


@dataclass
class _Tally:
    lent: int = 0
    corrupted: int = 0


def run_demo(device: str, steps: int) -> int:
    """Run it on "cuda", "simulated" or "auto"; the exit code."""
    chosen = _choose(device)
    if os.environ.get("LIMBO_DEVICE") != chosen:
        # The library asks when it is loaded, which is behind us: begin again.
        sys.stdout.flush()
        command = [sys.executable, "-m", "torch_limbo", "demo"]
        command += ["--device", chosen, "--steps", str(steps)]
        os.execve(sys.executable, command, {**os.environ, "LIMBO_DEVICE": chosen})
    with limbo_errors():
        return _run(chosen, steps)


def _choose(device: str) -> str:
    if device == "auto" and os.environ.get("LIMBO_DEVICE") in ("cuda", "simulated"):
        device = os.environ["LIMBO_DEVICE"]
    if device == "simulated":
        return device
    if device == "cuda":
        require_gpu("Use --device simulated, or auto.")
        return device
    if torch.cuda.is_available():
        return "cuda"
    print("No GPU that torch can use: this runs on the simulated device.")
    return "simulated"


def _run(device: str, steps: int) -> int:
    api.enable()
    trainer = SimulatedTrainer() if device == "simulated" else GpuTrainer()
    where = "the simulated GPU" if device == "simulated" else torch.cuda.get_device_name(0)
    print(f"A trainer and an inference process on {where}; {steps} steps.\n")
    tally = _Tally()
    trainer.step()
    trainer.weights()  # what a step needs is allocated once, before memory is compared
    before = api.stats()
    inference = _Inference.start()
    try:
        for step in range(1, steps + 1):
            told = trainer.step()
            _hand_over(trainer, inference, step, told, tally)
            if step == steps // 2:
                inference = _kill_and_restart(inference)
        inference.queue.put(None)
        inference.answer()
        inference.process.join(_ANSWER_S)
    finally:
        if inference.process.is_alive():
            inference.process.kill()
    _wait_for_return()
    return _verdict(before, api.stats(), tally)


def _hand_over(
    trainer: GpuTrainer | SimulatedTrainer,
    inference: _Inference,
    step: int,
    told: str,
    tally: _Tally,
) -> None:
    weights = trainer.weights()
    sums = {name: checksum(tensor) for name, tensor in weights.items()}
    tally.lent += len(weights)
    inference.queue.put((step, weights, sums))
    del weights
    answered, wrong, held = inference.answer()
    tally.corrupted += wrong + (answered != step)
    print(f"step {step}: {told}; the inference process holds {held} tensors, {wrong} wrong")


def _kill_and_restart(inference: _Inference) -> _Inference:
    _settle(lambda: sum(holder.claims for holder in api.holders()) > 0)
    print("\nbefore the kill:")
    _print_holders()
    pid = inference.process.pid
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    came_back = _wait_for_return()
    seconds = time.monotonic() - killed
    inference.process.join()
    print(
        f"\ninference process {pid} killed; after {seconds * 1e3:.0f} ms"
        + (" everything that it held is back:" if came_back else " something is still missing:")
    )
    _print_holders()
    print()
    return _Inference.start()


def _print_holders() -> None:
    rows = [("process", "state", "tensors", "bytes", "oldest")]
    for holder in api.holders():
        state = holder.state + (f" ({holder.why})" if holder.why else "")
        oldest = f"{holder.oldest_claim_ms} ms" if holder.claims else "-"
        rows.append((str(holder.pid), state, str(holder.claims), f"{holder.bytes:,}", oldest))
    if len(rows) == 1:
        print("  nobody holds anything")
    else:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  " + "  ".join(cells).rstrip())
    numbers = api.stats()
    print(
        f"  in limbo (freed here, still lent): {numbers['limbo_blocks']} blocks, "
        f"{numbers['limbo_bytes']:,} bytes"
    )


def _settle(condition: Callable[[], bool], seconds: float = _RETURN_S) -> bool:
    end = time.monotonic() + seconds
    while True:
        api.collect()
        if condition():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)


def _wait_for_return() -> bool:
    gc.collect()
    return _settle(lambda: api.stats()["limbo_blocks"] == 0)


def _verdict(before: dict[str, Any], after: dict[str, Any], tally: _Tally) -> int:
    sends, closed, swept = (
        after[name] - before[name] for name in ("sends", "closed", "claims_swept")
    )
    lost = sends - closed
    leaked = [
        f"{name}: {before[name]:,} before, {after[name]:,} after"
        for name in ("allocated_bytes", "active_bytes", "limbo_bytes")
        if before[name] != after[name]
    ]
    print("\nat the end:")
    _print_holders()
    for line in leaked:
        print(f"  {line}")
    print(
        f"\ndemo: lent={tally.lent} released={closed - swept} swept={swept} lost={lost} "
        f"corrupted={tally.corrupted}"
    )
    good = sends == tally.lent and lost == 0 and swept > 0 and not leaked and tally.corrupted == 0
    sys.stdout.flush()
    return 0 if good else 1
