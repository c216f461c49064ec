"""What goes wrong for people who share GPU memory, and what must come out here."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import remote
import remote_forks
import sim
import torch
import torch_limbo
from balance import wait_for_empty_limbo, wait_until
from peer import Peer
from torch_limbo import LimboError

pytestmark = pytest.mark.usefixtures("balanced")


@pytest.fixture
def peer(shared_peer: Peer) -> Peer:
    return shared_peer


def test_an_open_that_the_driver_refuses() -> None:
    with Peer(LIMBO_SIM_FAULTS="open_memory:1=fail") as peer:
        tensor = sim.full((100,), 2.0)
        with pytest.raises(LimboError) as caught:
            peer.call(remote.receive, "t", torch_limbo.share(tensor))
        assert caught.value.code == "device_error"
        assert peer.call(remote.stats)["pieces_mapped"] == 0
        later = torch_limbo.share(tensor)
        assert bool((peer.call(remote.receive, "t", later) == 2.0).all())
        del tensor
        peer.call(remote.drop, "t")


def test_a_reader_that_leaves_without_a_word() -> None:
    swept = torch_limbo.stats()["claims_swept"]
    with Peer() as peer:
        for number in range(10):
            peer.call(remote.receive, str(number), torch_limbo.share(sim.full((1000,), number)))
        assert torch_limbo.stats()["limbo_blocks"] == 10
        peer.begin(remote.leave_at_once, 10)
        peer.process.join(30)
    wait_for_empty_limbo()  # with no action by anyone
    assert torch_limbo.stats()["claims_swept"] == swept + 10


def test_readers_that_are_killed_again_and_again() -> None:
    def one_round() -> tuple[int, int]:
        with Peer() as peer:
            tensor = sim.full((16 * 1024 * 1024,), 1.0)
            peer.call(remote.receive, "t", torch_limbo.share(tensor))
            del tensor
            peer.kill()
        wait_for_empty_limbo()
        numbers = torch_limbo.stats()
        return numbers["allocated_bytes"], numbers["reserved_bytes"]

    leases = torch_limbo.stats()["leases_swept"]
    first = one_round()
    rounds = [one_round() for _ in range(9)]
    assert rounds == [first] * 9
    assert torch_limbo.stats()["leases_swept"] == leases + 10


def test_a_stopped_reader_keeps_what_it_holds() -> None:
    with Peer() as peer:
        tensor = sim.full((100,), 2.0)
        message = torch_limbo.share(tensor, ttl=0.01)
        peer.call(remote.receive, "t", message)
        del tensor
        os.kill(peer.pid, signal.SIGSTOP)
        unopened = torch_limbo.share(sim.full((100,), 3.0), ttl=0.05)
        wait_until(
            lambda: torch_limbo.stats()["limbo_blocks"] == 1, "the unopened message has no end"
        )
        os.kill(peer.pid, signal.SIGCONT)
        assert bool((peer.call(remote.values, "t") == 2.0).all())
        assert peer.call(remote.code_of_receiving, unopened) == "expired"
        peer.call(remote.drop, "t")


def test_other_threads_run_while_an_owner_is_asked() -> None:
    codes: list[str] = []

    def send_on(tensor: torch.Tensor) -> None:
        try:
            torch_limbo.share(tensor)
        except LimboError as error:
            codes.append(error.code)

    with Peer() as owner:
        tensor = torch_limbo.receive(owner.call(remote.make, "t", (3,), 1.0))
        os.kill(owner.pid, signal.SIGSTOP)
        try:
            asking = threading.Thread(target=send_on, args=(tensor,))
            asking.start()
            turns = 0
            while asking.is_alive():
                asking.join(0.001)
                turns += 1
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        assert codes == ["no_channel"]  # after a second
        assert turns > 10
        assert bool((sim.read(tensor) == 1.0).all())
        del tensor
        owner.call(remote.drop_all)


def test_replacing_a_shared_tensor_while_others_allocate(peer: Peer) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def allocate() -> None:
        try:
            while not stop.is_set():
                kept = [sim.empty(size) for size in (100, 70_000, 400_000)]
                del kept
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(300):
            peer.call(remote.keep, "t", sim.full((1000,), number))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert bool((peer.call(remote.values, "t") == 299).all())
    peer.call(remote.drop, "t")


@pytest.mark.parametrize("order", [0, 1])
def test_one_address_in_two_shapes(peer: Peer, order: int) -> None:
    kinds = [(torch.float32, 3, 1.25), (torch.int8, 4, 7)]
    if order:
        kinds.reverse()
    addresses = []
    for number, (dtype, size, value) in enumerate(kinds):
        tensor = sim.full((size,), value, dtype=dtype)
        addresses.append(tensor.data_ptr())
        got = peer.call(remote.receive, str(number), torch_limbo.share(tensor))
        assert (got.dtype, tuple(got.shape)) == (dtype, (size,))
        assert bool((got == value).all())
        seen = peer.call(remote.describe, str(number))
        assert seen["storage_bytes"] == size * got.element_size()
        peer.call(remote.drop, str(number))
        del tensor
        wait_for_empty_limbo()
    assert addresses[0] == addresses[1], "the test wants one address"


def test_what_changes_the_size_of_a_received_tensor(peer: Peer) -> None:
    tensor = sim.of(torch.arange(64, dtype=torch.int32))
    peer.call(remote.receive, "t", torch_limbo.share(tensor))
    outcome = peer.call(remote.refused_resizes, "t", [512, 128, 0])
    for what, text in outcome.items():
        assert text.startswith("refused"), f"{what}: {text}"
    for what in ("larger", "view", "set"):
        assert "clone()" in outcome[what]
    assert peer.call(remote.resize, "t", 10).tolist() == list(range(10))
    assert peer.call(remote.resize, "t", 0).tolist() == []
    assert peer.call(remote.resize, "t", 64).tolist() == list(range(64))
    assert sim.read(tensor).tolist() == list(range(64))
    del tensor
    peer.call(remote.drop, "t")


OUT_OF_MEMORY = """
import torch
import torch_limbo, sim
for attempt in range(3):
    try:
        sim.empty(1 << 30)
    except torch.cuda.OutOfMemoryError as error:
        assert "out of memory" in str(error), error
    else:
        raise SystemExit("4 GiB came out of 64 MiB")
    small = sim.full((1 << 18,), 7.0)
    assert bool((sim.read(small) == 7.0).all())
    del small
assert torch_limbo.stats()["allocated_bytes"] == 0
kept = [sim.empty(1 << 20) for _ in range(12)]
try:
    sim.empty(6 << 20)
except torch.cuda.OutOfMemoryError:
    pass
else:
    raise SystemExit("more than there is")
kept.clear()
sim.empty(6 << 20)
"""


def test_more_than_there_is(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LIMBO_SIM_MACHINE": str(tmp_path / "machine"),
        "LIMBO_SIM_MEMORY_MB": "64",
    }
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_message_cut_short_in_a_queue() -> None:
    import pickle

    tensor = sim.full((3,), 1.0)
    data = bytes(ForkingPickler.dumps(tensor))
    message = torch_limbo.share(tensor)
    altered = data.replace(message[:16], b"\xff" * 16, 1)
    assert altered != data
    with pytest.raises(LimboError) as caught:
        pickle.loads(altered)
    assert caught.value.code == "bad_descriptor"
    torch_limbo.withdraw(message)
    del tensor
    assert bool((sim.read(pickle.loads(data)) == 1.0).all())  # nothing was lost by the error


def test_a_pickle_that_fails_halfway_takes_back_what_it_shared(peer: Peer) -> None:
    def dump_in_vain(tensor: torch.Tensor) -> None:
        for hopeless in ([tensor, threading.Lock()], [tensor.untyped_storage(), threading.Lock()]):
            with pytest.raises(TypeError):
                ForkingPickler.dumps(hopeless)

    withdrawn = torch_limbo.stats()["withdrawn"]
    dump_in_vain(sim.full((1000,), 1.0))
    gc.collect()  # the errors' frames hold the tensor
    wait_for_empty_limbo()
    assert torch_limbo.stats()["withdrawn"] == withdrawn + 2
    # One inside another: each has its own.
    whole = ForkingPickler.dumps([sim.full((3,), 1.0), Failing(), sim.full((3,), 3.0)])
    assert torch_limbo.stats()["withdrawn"] == withdrawn + 3
    first, _, last = peer.call(remote.loaded_values, bytes(whole))
    assert (first.tolist(), last.tolist()) == ([1.0] * 3, [3.0] * 3)


class Failing:
    """Its pickling makes another pickle, which fails behind a tensor."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        with pytest.raises(TypeError):
            ForkingPickler.dumps([sim.full((3,), 2.0), threading.Lock()])
        return (object, ())


#: What a fork child may ask: about what it holds itself, and about the library.
ANSWERED_IN_A_FORK_CHILD = {
    "is_limbo": "False",
    "is_received": "True",
    "limbo_torch_usable": "None",
    "limbo_torch_installed": "0",
    "limbo_torch_install": "None",
    "limbo_torch_enable": "None",
    "limbo_torch_make_allocator": "None",
    "limbo_torch_restore_allocator": "None",
    "limbo_set_option": "None",
    "limbo_drain": "None",
    "limbo_drain_before_exit": "None",
    "limbo_keep_for_graph": "None",
    "limbo_announce_capture": "None",
    "limbo_withdraw_capture": "None",
    "limbo_options_json": "True",
    "limbo_device_name": "True",
    "limbo_probes_json": "True",
}


def test_nothing_that_a_fork_child_calls_ends_it(peer: Peer) -> None:
    tensor = sim.full((3,), 1.0)
    message = torch_limbo.share(tensor)
    peer.call(remote.receive, "t", message)
    status, outcomes = peer.call(remote_forks.outcomes_in_fork_child, "t", message)
    assert status == 0, f"it ended behind {list(outcomes)[-1:]}"
    operators = {
        name.removeprefix("limbo::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("limbo::")
    }
    assert operators <= outcomes.keys()
    answered = {what: met for what, met in outcomes.items() if met != "forked_child"}
    assert answered == ANSWERED_IN_A_FORK_CHILD
    assert bool((peer.call(remote.values, "t") == 1.0).all())
    del tensor
    peer.call(remote.drop, "t")


def _in_fork_child(use: Callable[[], object]) -> str:
    """What a child that is forked here meets: the code of an error of Limbo's, else its words."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        met = "no error"
        try:
            use()
        except LimboError as error:
            met = error.code
        except BaseException as error:
            met = repr(error)
        os.write(writer, met.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        met = told.read()
    assert os.waitpid(child, 0)[1] == 0
    return met


def test_a_child_forked_after_the_first_use_is_told(peer: Peer) -> None:
    tensor = sim.full((3,), 1.0)
    peer.call(remote.receive, "t", torch_limbo.share(tensor))
    assert _in_fork_child(partial(torch_limbo.share, tensor)) == "forked_child"
    # The child's end took nothing from its parent.
    assert bool((peer.call(remote.values, "t") == 1.0).all())
    del tensor
    peer.call(remote.drop, "t")


def test_every_function_says_that_its_child_was_forked() -> None:
    tensor = sim.full((3,), 1.0)
    message = torch_limbo.share(tensor)
    received = torch_limbo.receive(message)
    registry = torch_limbo.Registry("forked")
    uses: dict[str, Callable[[], object]] = {
        "share": lambda: torch_limbo.share(tensor),
        "receive": lambda: torch_limbo.receive(message),
        "withdraw": lambda: torch_limbo.withdraw(message),
        "is_orphaned": lambda: torch_limbo.is_orphaned(received),
        "collect": torch_limbo.collect,
        "reap": torch_limbo.reap,
        "holders": torch_limbo.holders,
        "processes": torch_limbo.processes,
        "stats": torch_limbo.stats,
        "publish": lambda: registry.publish("name", tensor),
        "unpublish": lambda: registry.unpublish("name"),
        "acquire": lambda: registry.acquire("name"),
        "release": lambda: registry.release(received),
        "names": registry.names,
        "registry.holders": lambda: registry.holders("name"),
        "registry.reap": registry.reap,
    }
    met = {name: _in_fork_child(use) for name, use in uses.items()}
    assert met == dict.fromkeys(uses, "forked_child")
    assert bool((sim.read(received) == 1.0).all())


def test_exit_with_a_living_reader_is_quiet(peer: Peer) -> None:
    code = """
import sys, torch_limbo, sim
kept = [sim.full((100,), 1.0) for _ in range(5)]
messages = [torch_limbo.share(tensor) for tensor in kept]
del kept[2:]
sys.stdout.write("\\n".join(message.hex() for message in messages) + "\\n")
sys.stdout.flush()
sys.stdin.readline()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for number in range(5):
        message = bytes.fromhex(process.stdout.readline())
        peer.call(remote.receive, str(number), message)
    _, alarming = process.communicate("\n", timeout=60)
    assert (process.returncode, alarming) == (0, "")
    for number in range(5):
        assert bool((peer.call(remote.values, str(number)) == 1.0).all())
    peer.call(remote.drop_all)
