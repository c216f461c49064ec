"""Another process that does what a test tells it: functions of remote.py, by name."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

_ANSWER_S = 60.0


def serve(connection: Connection, environment: dict[str, str]) -> None:
    """The other process: answers calls until the connection is closed."""
    os.environ.update(environment)
    while True:
        try:
            call = connection.recv()
        except EOFError:
            return
        except Exception as error:
            connection.send(("error", error, traceback.format_exc()))
            continue
        if call is None:
            return
        function, arguments = call
        del call
        try:
            result = function(*arguments)
        except Exception as error:
            connection.send(("error", error, traceback.format_exc()))
        else:
            connection.send(("value", result, ""))
            del result
        del arguments


class Peer:
    """A process of its own; `call` runs a function there and gives its result.

    By default it is forked by a fork server that has loaded torch and the package, so that it
    starts in milliseconds; method "spawn" starts a new interpreter.
    """

    def __init__(self, method: str = "forkserver", **environment: str) -> None:
        context: Any = mp.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["torch", "torch_limbo"])
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, environment), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start a call; `result` ends it."""
        self._connection.send((function, arguments))

    def result(self) -> Any:
        """What the call gave, or its exception."""
        if not self._connection.poll(_ANSWER_S):
            raise TimeoutError(f"process {self.pid} gave no answer for {_ANSWER_S:.0f} s")
        kind, value, text = self._connection.recv()
        if kind == "error":
            print(f"in process {self.pid}:\n{text}", file=sys.stderr)
            raise value
        return value

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.begin(function, *arguments)
        return self.result()

    def kill(self) -> None:
        """End it by SIGKILL and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.join(30)
        self._connection.close()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Every thread of it stands still meanwhile."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            while not all(
                task.read_text(encoding="ascii").rpartition(") ")[2].startswith("T")
                for task in Path(f"/proc/{self.pid}/task").glob("*/stat")
            ):
                time.sleep(0.001)
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Let it end by itself."""
        self._connection.send(None)
        self.process.join(30)
        self._connection.close()
        assert self.process.exitcode == 0, f"exit code {self.process.exitcode}"

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.is_alive():
            self.stop()
        elif not self._connection.closed:
            self._connection.close()
