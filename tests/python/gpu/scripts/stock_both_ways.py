"""Limbo on one side, stock PyTorch on the other, by `_share_cuda_` and `_new_shared_cuda`.

Both directions, both orders of exit. All processes are started at once; none but those that say so
import torch_limbo.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import torch
import torch.multiprocessing as mp
from common import memory_use, note, report, run, wait_until

ELEMENTS = 1000
LARGE = 8 << 20  # in a segment of its own
ANSWER_S = 80.0


def begin(limbo: bool) -> None:
    if limbo:
        import torch_limbo

        torch_limbo.enable(multiprocessing="stock")
    torch.cuda.init()


def answering(pipe: Any, commands: dict[str, Any]) -> None:
    """Answer commands by name until "end"."""
    pipe.send("ready")
    while (message := pipe.recv())[0] != "end":
        name, *arguments = message
        try:
            answer = commands[name](*arguments)
        except Exception:
            answer = f"{name} failed: {traceback.format_exc()}"
        pipe.send(answer)


def produce(limbo: bool, pipe: Any) -> None:
    begin(limbo)
    kept: dict[str, torch.Tensor] = {}
    before = memory_use()

    def make() -> list[tuple[Any, ...]]:
        kept["small"] = torch.arange(ELEMENTS, device="cuda")
        kept["beside"] = torch.arange(ELEMENTS, device="cuda") * 2
        kept["large"] = torch.full((LARGE,), 3, dtype=torch.uint8, device="cuda")
        return [
            kept[name].untyped_storage()._share_cuda_() for name in ("small", "beside", "large")
        ]

    def again() -> tuple[Any, ...]:
        shared = kept["small"].untyped_storage()._share_cuda_()
        # Not sent: its counter is given back as a consumer would.
        torch.UntypedStorage._release_ipc_counter_cuda(shared[4], shared[5])
        return shared[1:4]

    def drop() -> dict[str, int]:
        kept.clear()
        return memory_use()

    def collected() -> float:
        def all_back() -> bool:
            torch.cuda.ipc_collect()
            now = memory_use()
            return (now["allocated"], now["active"]) == (before["allocated"], before["active"])

        return wait_until(all_back, 20, f"memory is not back: {before}, {memory_use()}")

    answering(
        pipe,
        {
            "make": make,
            "again": again,
            "sum": lambda: int(kept["small"].sum()),
            "drop": drop,
            "collected": collected,
            "backend": torch.cuda.get_allocator_backend,
        },
    )


def consume(limbo: bool, pipe: Any) -> None:
    begin(limbo)
    kept: dict[str, torch.Tensor] = {}

    def open_all(shared: list[tuple[Any, ...]]) -> None:
        for name, arguments in zip(("small", "beside", "large"), shared, strict=True):
            storage = torch.UntypedStorage._new_shared_cuda(*arguments)
            dtype = torch.uint8 if name == "large" else torch.int64
            kept[name] = torch.empty(0, dtype=dtype, device="cuda").set_(storage)

    def values() -> list[int]:
        return [int(kept[name].sum()) for name in ("small", "beside", "large")]

    def write() -> None:
        kept["small"] += 1
        torch.cuda.synchronize()

    def drop() -> None:
        kept.clear()
        torch.cuda.synchronize()
        torch.cuda.ipc_collect()

    answering(
        pipe,
        {
            "open": open_all,
            "values": values,
            "write": write,
            "drop": drop,
            "knows": lambda: "torch_limbo" in sys.modules,
            "backend": torch.cuda.get_allocator_backend,
        },
    )


class Other:
    """A process and its answers."""

    def __init__(self, target: Any, limbo: bool) -> None:
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(limbo, theirs))
        self.process.start()
        theirs.close()

    def answer(self) -> Any:
        if not self._pipe.poll(ANSWER_S):
            raise TimeoutError(f"no answer from process {self.process.pid}")
        answer = self._pipe.recv()
        if isinstance(answer, str) and " failed: " in answer:
            raise RuntimeError(answer)
        return answer

    def ask(self, *command: Any) -> Any:
        self._pipe.send(command)
        return self.answer()

    def end(self) -> int | None:
        self._pipe.send(("end",))
        self.process.join(ANSWER_S)
        return self.process.exitcode


def one_pair(producer: Other, consumer: Other, producer_first: bool) -> dict[str, Any]:
    shared = producer.ask("make")
    repeated = producer.ask("again")
    consumer.ask("open", shared)
    result = {
        "backends": [producer.ask("backend"), consumer.ask("backend")],
        "knows": consumer.ask("knows"),
        "one segment, one handle": shared[0][1] == shared[1][1],
        "sent again, the same": repeated == shared[0][1:4],
        "another segment, another handle": shared[0][1] != shared[2][1],
        "values": consumer.ask("values"),
    }
    consumer.ask("write")
    result["changed"] = producer.ask("sum")
    if producer_first:
        result["exits"] = [producer.end()]
        result["values after"] = consumer.ask("values")
        consumer.ask("drop")
        result["exits"].append(consumer.end())
    else:
        producer.ask("drop")
        result["values after"] = consumer.ask("values")  # freed by their owner, and not reused
        consumer.ask("drop")
        result["exits"] = [consumer.end()]
        result["seconds to return"] = producer.ask("collected")
        result["exits"].append(producer.end())
    return result


def main() -> int:
    pairs = {
        f"{'limbo' if limbo else 'stock'} producer, {'producer' if first else 'consumer'} first": (
            Other(produce, limbo),
            Other(consume, not limbo),
            first,
        )
        for limbo in (True, False)
        for first in (True, False)
    }
    results = {}
    for name, (producer, consumer, first) in pairs.items():
        assert producer.answer() == "ready"
        assert consumer.answer() == "ready"
        results[name] = one_pair(producer, consumer, first)
        note(name, results[name])
    report(**results)
    return 0


if __name__ == "__main__":
    run(main)
