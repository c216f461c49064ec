"""What tests let another process try in a fork child (peer.py)."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from typing import Any

import remote
import torch
import torch_limbo
from torch_limbo import _library, reductions


def _outcome(use: Callable[[], Any]) -> str:
    """The code of the error that it meets, or its result."""
    try:
        return repr(use())
    except torch_limbo.LimboError as error:
        return error.code
    except RuntimeError as error:
        return str(error).partition("]")[0].removeprefix("limbo[")


def _uses_of_operators(tensor: torch.Tensor, message: torch.Tensor) -> dict[str, Any]:
    ops = torch.ops.limbo
    return {
        "share": lambda: ops.share(tensor),
        "receive": lambda: ops.receive(message),
        "share_storage": lambda: ops.share_storage(tensor),
        "receive_storage": lambda: ops.receive_storage(message),
        "kind": lambda: ops.kind(message),
        "withdraw": lambda: ops.withdraw(message),
        "collect": lambda: ops.collect(),
        "is_limbo": lambda: ops.is_limbo(tensor),
        "is_received": lambda: ops.is_received(tensor),
        "is_orphaned": lambda: ops.is_orphaned(tensor),
        "holders": lambda: ops.holders(),
        "stats": lambda: ops.stats(),
        "publish": lambda: ops.publish(tensor, "name"),
        "unpublish": lambda: ops.unpublish("name"),
        "acquire": lambda: ops.acquire("name"),
        "names": lambda: ops.names(),
        "processes": lambda: ops.processes(),
        "holders_of": lambda: ops.holders_of("0" * 32),
        "reap_in": lambda: ops.reap_in("0" * 32),
        "sim_empty": lambda: ops.sim_empty([1]),
        "sim_fill": lambda: ops.sim_fill(tensor, 1.0),
        "sim_read": lambda: ops.sim_read(tensor),
        "sim_write": lambda: ops.sim_write(tensor, torch.ones(tensor.shape)),
        "sim_equal": lambda: ops.sim_equal(tensor, tensor),
        "sim_new_stream": lambda: ops.sim_new_stream(),
        "sim_set_stream": lambda: ops.sim_set_stream(0),
        "sim_current_stream": lambda: ops.sim_current_stream(),
        "sim_synchronize": lambda: ops.sim_synchronize(),
        "sim_record_history": lambda: ops.sim_record_history(None),
    }


def _uses_of_functions() -> dict[str, Any]:
    library = _library.load()
    announcement = ctypes.c_uint64()
    with_code = {
        "limbo_torch_usable": library.limbo_torch_usable,
        "limbo_torch_install": library.limbo_torch_install,
        "limbo_torch_enable": lambda: library.limbo_torch_enable(None, None, 0),
        "limbo_torch_make_allocator": library.limbo_torch_make_allocator,
        "limbo_torch_restore_allocator": library.limbo_torch_restore_allocator,
        "limbo_set_option": lambda: library.limbo_set_option(b"exit_drain_ms", 10),
        "limbo_reap": lambda: library.limbo_reap(0, None, None),
        "limbo_drain": lambda: library.limbo_drain(1000, None),
        "limbo_drain_before_exit": library.limbo_drain_before_exit,
        "limbo_keep_for_graph": lambda: library.limbo_keep_for_graph(0, None, None),
        "limbo_announce_capture": lambda: library.limbo_announce_capture(
            0, None, ctypes.byref(announcement)
        ),
        "limbo_withdraw_capture": lambda: library.limbo_withdraw_capture(announcement.value),
    }
    with_text = {
        "limbo_options_json": library.limbo_options_json,
        "limbo_device_name": library.limbo_device_name,
        "limbo_incarnation": library.limbo_incarnation,
        "limbo_holders_json": library.limbo_holders_json,
        "limbo_stats_json": library.limbo_stats_json,
        "limbo_devices_json": library.limbo_devices_json,
        "limbo_probes_json": lambda: library.limbo_probes_json(0),
    }
    uses: dict[str, Any] = {"limbo_torch_installed": library.limbo_torch_installed}
    for name, function in with_code.items():
        uses[name] = lambda function=function: _library.check(function())
    for name, function in with_text.items():
        uses[name] = lambda function=function: bool(_library.text_of(function()))
    return uses


def outcomes_in_fork_child(name: str, message: bytes) -> tuple[int, dict[str, str]]:
    """How a fork child of this process ends (0: well), and what it meets: by every operator, with
    the tensor that is held here under `name`, and by every function of the library."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            uses = _uses_of_operators(remote.HELD[name], reductions.tensor_of(message))
            uses.update(_uses_of_functions())
            for what, use in uses.items():
                os.write(writer, (json.dumps([what, _outcome(use)]) + "\n").encode())
            remote.HELD.clear()
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as lines:
        outcomes: dict[str, str] = dict(json.loads(line) for line in lines)
    return os.waitpid(child, 0)[1], outcomes
