"""What sharing costs from Python, with torch's own way or with Limbo; budgets.py runs it.

    python_sharing.py stock|limbo [--simulated] [--quick]

The same operations either way: this process sends, another one receives. The last line is RESULT
and a JSON object of what was measured. Times are of single calls on the host, in microseconds; on
the simulated device they show only that everything works, and there is no work to queue there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import signal
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor

RESULT = "RESULT "
ELEMENTS = 1024  # floats: 4 KiB
AT_ONCE = 256  # operations between two waits for the stream, where nothing is to queue up
ROTATION = 64  # tensors that go round in a queue
BIG_BYTES = 256 * 2**20
PATIENCE_S = 60.0


class Way:
    """What differs between torch's way and Limbo's, and between a GPU and a simulated one."""

    def __init__(self, limbo: bool, simulated: bool, lends: bool) -> None:
        self.limbo, self.simulated = limbo, simulated
        if limbo:
            import torch_limbo

            self.library = torch_limbo.library_path()
            if lends and not simulated:
                torch_limbo.enable()
        if not simulated:
            torch.ones(1, device="cuda").sum().item()
            self._cycles_per_second = _cycles_per_second()

    def make(self, bytes_each: int = 4 * ELEMENTS) -> torch.Tensor:
        if self.simulated:
            made: torch.Tensor = torch.ops.limbo.sim_empty([bytes_each // 4], dtype=torch.float32)
            return made
        return torch.empty(bytes_each // 4, device="cuda")

    def synchronize(self) -> None:
        if self.simulated:
            torch.ops.limbo.sim_synchronize(0)
        else:
            torch.cuda.synchronize()

    def collect(self) -> None:
        if self.limbo:
            import torch_limbo

            torch_limbo.collect()
        else:
            torch.cuda.ipc_collect()

    def in_use(self) -> int:
        """Bytes that are allocated or lent."""
        if self.simulated:
            import torch_limbo

            return int(torch_limbo.stats()["limbo_bytes"])
        return int(torch.cuda.memory_stats()["active_bytes.all.current"])

    def keep_busy(self, seconds: float) -> torch.cuda.Event:
        """Work for so long on the current stream; the event that ends it."""
        torch.cuda._sleep(int(seconds * self._cycles_per_second))
        done = torch.cuda.Event()
        done.record()
        return done


def _cycles_per_second() -> float:
    """Of torch's sleeping kernel."""
    cycles = 20_000_000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    torch.cuda.synchronize()
    return cycles / (begin.elapsed_time(end) / 1e3)


def summary(times_ns: list[int]) -> dict[str, float]:
    ordered = sorted(times_ns)
    return {
        "count": len(ordered),
        "median_us": statistics.median(ordered) / 1e3,
        "p99_us": ordered[(len(ordered) * 99 - 1) // 100] / 1e3,
        "longest_us": ordered[-1] / 1e3,
        "last_us": times_ns[-1] / 1e3,
    }


def timed_each(items: Any, operation: Callable[[Any], Any], way: Way | None) -> tuple[Any, Any]:
    """The results of `operation` on each item, and the nanoseconds of each. With `way`, the GPU is
    waited for now and then, outside of the timing."""
    results, times = [], []
    for number, item in enumerate(items):
        if way is not None and number % AT_ONCE == 0:
            way.synchronize()
        start = time.perf_counter_ns()
        results.append(operation(item))
        times.append(time.perf_counter_ns() - start)
    return results, times


def dumps(tensor: torch.Tensor) -> bytes:
    return bytes(ForkingPickler.dumps(tensor))


# ---- the receiver ------------------------------------------------------------------------------


def receive_for(connection: Connection, queue: Any, limbo: bool, simulated: bool) -> None:
    """The other process: does what it is told until the connection is closed."""
    way = Way(limbo, simulated, lends=False)
    held: list[Any] = []

    def loads(messages: list[bytes]) -> list[int]:
        opened, times = timed_each(messages, pickle.loads, way)
        held.extend(opened)
        return list(times)

    def new_shared(arguments: list[tuple[Any, ...]]) -> list[int]:
        # What torch's rebuild_cuda_tensor calls, without what is Python's.
        opened, times = timed_each(
            arguments, lambda each: torch.UntypedStorage._new_shared_cuda(*each), way
        )
        held.extend(opened)
        return list(times)

    def drop() -> None:
        held.pop()

    def release(behind_s: float) -> tuple[list[int], bool]:
        done = way.keep_busy(behind_s) if behind_s else None
        count = len(held)
        held.reverse()
        _, times = timed_each(range(count), lambda _: drop(), None)
        busy = done is not None and not done.query()
        way.synchronize()
        way.collect()
        return times, busy

    def take(queue: Any, count: int, times: bool) -> list[int]:
        arrived = []
        for _ in range(count):
            item = queue.get(timeout=PATIENCE_S)
            if times:
                arrived.append(time.monotonic_ns())
                connection.send(None)
        del item
        way.synchronize()
        return arrived

    commands: dict[str, Callable[..., Any]] = {
        "loads": loads,
        "new_shared": new_shared,
        "release": release,
        "take": take,
    }
    connection.send("ready")
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            break
        if name == "take":
            arguments = (queue, *arguments)
        connection.send(commands[name](*arguments))
    held.clear()


class Receiver:
    def __init__(self, way: Way) -> None:
        context = mp.get_context("spawn")
        self.queue: Any = context.Queue()
        self.queue.cancel_join_thread()  # after a failure nobody reads it any more
        self._ours, theirs = context.Pipe()
        arguments = (theirs, self.queue, way.limbo, way.simulated)
        self.process = context.Process(target=receive_for, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        assert self.answer() == "ready"

    def ask(self, name: str, *arguments: Any) -> None:
        self._ours.send((name, arguments))

    def answer(self) -> Any:
        if not self._ours.poll(PATIENCE_S * 2):
            raise TimeoutError("the receiver does not answer")
        return self._ours.recv()

    def call(self, name: str, *arguments: Any) -> Any:
        self.ask(name, *arguments)
        return self.answer()

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(PATIENCE_S)


# ---- the sender --------------------------------------------------------------------------------


class Sender:
    def __init__(self, way: Way, quick: bool) -> None:
        self.way, self.quick = way, quick
        self.receiver = Receiver(way)
        self.results: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        self.messages()
        self.queue()
        if not self.way.simulated:
            self.send_behind_work()
            self.release_behind_work()
        self.collect()
        if not self.way.limbo:
            self.bare_calls()
        self.kill()
        return self.results

    def wait_until(self, condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            self.way.collect()
            time.sleep(0.001)
        return True

    def lend(self, count: int) -> list[torch.Tensor]:
        """Tensors that the receiver holds, a message each."""
        tensors = [self.way.make() for _ in range(count)]
        for first in range(0, count, 1000):
            messages, _ = timed_each(tensors[first : first + 1000], dumps, self.way)
            self.receiver.call("loads", messages)
        return tensors

    def messages(self) -> None:
        """One message: dumps here, loads and release there, nothing queued."""
        count, rounds = (20, 2) if self.quick else (300, 5)
        sent: list[int] = []
        opened: list[int] = []
        released: list[int] = []
        for number in range(rounds):
            tensors = [self.way.make() for _ in range(count)]
            messages, dumping = timed_each(tensors, dumps, self.way)
            loading = self.receiver.call("loads", messages)
            releasing, _ = self.receiver.call("release", 0.0)
            tensors.clear()
            self.way.collect()
            if number > 0:  # the first maps the pieces
                sent += dumping
                opened += loading
                released += releasing
        self.results["dumps"] = summary(sent)
        self.results["loads"] = summary(opened)
        self.results["release_idle"] = summary(released)

    def queue(self) -> None:
        """mp.Queue: tensors in rotation as fast as they go, and one message at a time."""
        count = 50 if self.quick else 2000
        tensors = [self.way.make() for _ in range(ROTATION)]
        each = []
        for _ in range(2 if self.quick else 4):
            self.receiver.ask("take", count, False)
            start = time.perf_counter_ns()
            for number in range(count):
                self.receiver.queue.put(tensors[number % ROTATION])
            self.receiver.answer()
            each.append((time.perf_counter_ns() - start) // count)
        self.results["queue"] = summary(each[1:])
        self.results["queue_one_at_a_time"] = self.one_at_a_time(tensors, count // 4)
        self.results["queue_of_none"] = self.one_at_a_time([None], count // 4)

    def one_at_a_time(self, items: list[Any], count: int) -> dict[str, float]:
        """From the put until the other process has got it; the next goes when that is told."""
        self.receiver.ask("take", count, True)
        put = []
        for number in range(count):
            put.append(time.monotonic_ns())
            self.receiver.queue.put(items[number % len(items)])
            self.receiver.answer()
        got = self.receiver.answer()
        return summary([there - here for here, there in zip(put, got, strict=True)][1:])

    def send_behind_work(self) -> None:
        unreleased = 10_000 if self.way.limbo else 1_100  # torch's own takes a millisecond each
        tensors = self.lend(50 if self.quick else unreleased)
        more = [self.way.make() for _ in range(20 if self.quick else 300)]
        self.way.synchronize()
        done = self.way.keep_busy(0.3)
        messages, times = timed_each(more, dumps, None)
        busy = not done.query()
        self.way.synchronize()
        if not self.way.limbo:
            # Torch makes 1,000 interprocess events at most (a driver, 4,095); a send without one
            # has waited for its stream.
            arguments = [reduce_tensor(tensor)[1] for tensor in more[:10]]
            self.results["sends_with_an_event"] = sum(each[14] for each in arguments)
        self.receiver.call("loads", messages)
        self.results["send_behind_work"] = {
            **summary(times),
            "unreleased": len(tensors),
            "busy_at_the_end": busy,
        }
        self.receiver.call("release", 0.0)

    def release_behind_work(self) -> None:
        count = 5_000 if self.way.limbo else 300
        tensors = self.lend(20 if self.quick else count)
        times, busy = self.receiver.call("release", 0.5)
        self.results["release_behind_work"] = {**summary(times), "busy_at_the_end": busy}
        tensors.clear()

    def collect(self) -> None:
        count = 50 if self.quick else 8_000
        tensors = self.lend(count)
        tensors.clear()
        gc.collect()
        for _ in range(20):
            self.way.collect()
        _, times = timed_each(range(200), lambda _: self.way.collect(), None)
        self.results["collect"] = {**summary(times), "in_limbo": count}
        self.receiver.call("release", 0.0)

    def kill(self) -> None:
        """A consumer is killed that holds one large block; when is it free in its owner?"""
        tensor = self.way.make(2**20 if self.way.simulated else BIG_BYTES)
        size_bytes = tensor.untyped_storage().nbytes()
        self.receiver.call("loads", [dumps(tensor)])
        del tensor
        gc.collect()
        self.way.collect()
        most = self.way.in_use() - size_bytes
        assert most >= 0, "the block of the consumer that is to be killed is not in use"
        start = time.monotonic()
        self.receiver.kill()
        back = self.wait_until(lambda: self.way.in_use() <= most, 3.0)
        seconds = time.monotonic() - start
        self.results["kill"] = {"back": back, "seconds": seconds}

    def bare_calls(self) -> None:
        """What torch's reducers call, without what is Python's."""
        tensors = [self.way.make() for _ in range(20 if self.quick else 300)]
        shared, sharing = timed_each(
            tensors, lambda tensor: tensor.untyped_storage()._share_cuda_(), self.way
        )
        opening = self.receiver.call("new_shared", shared)
        self.results["share_cuda"] = summary(sharing)
        self.results["new_shared_cuda"] = summary(opening)
        self.receiver.call("release", 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("stock", "limbo"))
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.simulated and options.way == "stock":
        parser.error("torch's own way needs a GPU")
    way = Way(options.way == "limbo", options.simulated, lends=True)
    print(RESULT + json.dumps(Sender(way, options.quick).run()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
