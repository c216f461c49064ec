"""Options: what is refused, when, and that nothing has changed then."""

from __future__ import annotations

import os
import subprocess
import sys

import remote
import torch_limbo
from balance import wait_until
from peer import Peer

CODE_OF = """
import torch, torch_limbo
from torch_limbo import LimboError

def code_of(**arguments):
    try:
        torch_limbo.enable(**arguments)
    except LimboError as error:
        return error.code, str(error)
    return "", ""

def value_of(name):
    return {option.name: option.value for option in torch_limbo.options()}[name]
"""


def check(code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE_OF + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_enable_twice_and_its_arguments() -> None:
    check("""
code, text = code_of(multiprocessing="native")
assert code == "bad_argument" and "native" in text and "stock" in text, text
code, text = code_of(no_such_option=1)
assert code == "unknown_option" and "no_such_option" in text, text
code, text = code_of(exit_drain_ms="long")
assert code == "bad_argument" and "exit_drain_ms" in text, text
code, text = code_of(exit_drain_ms=-5)
assert code == "unknown_option" and "-5" in text, text
for number in (2**64 + 5, -(2**70)):
    code, text = code_of(exit_drain_ms=number)
    assert code == "unknown_option" and str(number) in text, text
for name in ("\\ud800", "exit_drain_ms\\0", "", "gr\\u00f6\\u00dfe"):
    code, text = code_of(**{name: 1})
    assert code == "unknown_option" and repr(name) in text, text
assert value_of("exit_drain_ms") == 5000
torch_limbo.enable(exit_drain_ms=1234)
torch_limbo.enable()
assert value_of("exit_drain_ms") == 1234
""")


#: A value that none of them can be, by the name of the option.
UNREADABLE = {
    "exit_drain_ms": "10s",
    "ledger_scans_per_second": "fast",
    "ledger_claims": "1000",
    "import_cache_pieces": "-1",
    "thread_cache_bytes": "1 MiB",
}


def test_what_cannot_be_read_is_said_before_anything_is_done() -> None:
    code = f"""
import os
for name, value in {UNREADABLE!r}.items():
    variable = "LIMBO_" + name.upper()
    os.environ[variable] = value
    code, text = code_of()
    assert code == "unknown_option" and variable in text and value in text, (code, text)
    try:
        torch_limbo.LimboAllocator()
    except LimboError as error:
        assert error.code == "unknown_option" and variable in str(error), error
    else:
        raise SystemExit("made")
    assert torch.cuda.get_allocator_backend() == "native"
    del os.environ[variable]
os.environ["LIMBO_EXIT_DRAIN_MS"] = "10s"
code, text = code_of(exit_drain_ms=10_000)  # nobody reads the variable
assert code == "" and torch.cuda.get_allocator_backend() == "limbo", text
"""
    check(code)


def test_a_refused_enable_changes_nothing() -> None:
    code = """
before = torch_limbo.options()
for wrong in (
    {"no_such": 1},
    {"collect_wait_ms": -1},
    {"ledger_claims": 1000},
    {"unmap_wait_ms": 2**70},
    {"unmap_wait_ms": "long"},
):
    code, text = code_of(multiprocessing="stock", exit_drain_ms=17, **wrong)
    assert code in ("unknown_option", "bad_argument"), text
    assert torch_limbo.options() == before, wrong
    assert torch_limbo.reductions._sends_by_descriptor
    assert torch.cuda.get_allocator_backend() == "native"
"""
    check(code)


def test_an_installation_that_fails_changes_no_option() -> None:
    code = """
code, text = code_of(exit_drain_ms=17, ledger_exports=4)
assert code == "bad_argument" and "backend" in text, text
assert (value_of("exit_drain_ms"), value_of("ledger_exports")) == (5000, 1 << 20)
"""
    check(code, PYTORCH_CUDA_ALLOC_CONF="backend:native")


def test_claims_are_a_multiple_of_a_group() -> None:
    code = """
code, text = code_of(ledger_claims=1000)
assert code == "unknown_option" and "ledger_claims" in text and "multiple of 512" in text, text
assert value_of("ledger_claims") == 1 << 16
"""
    check(code)


def test_what_has_been_read_for_good_cannot_be_changed() -> None:
    """The ledger is made with the first message, the allocator with the first memory."""
    code = """
import sim
torch_limbo.enable(ledger_exports=1000, thread_cache_bytes=1 << 20)
torch_limbo.enable(ledger_exports=2000)  # nothing has read it yet
tensor = sim.full((10,), 1.0)
code, text = code_of(thread_cache_bytes=1 << 21)
assert code == "already_in_use" and "thread_cache_bytes" in text, (code, text)
torch_limbo.enable(ledger_exports=3000)
message = torch_limbo.share(tensor)
for name in ("ledger_exports", "ledger_pieces", "ledger_timelines", "ledger_scans_per_second"):
    before = torch_limbo.options()
    code, text = code_of(exit_drain_ms=17, **{name: 17})
    assert code == "already_in_use" and name in text and name.upper() in text, (code, text)
    assert torch_limbo.options() == before
torch_limbo.enable(ledger_exports=3000)  # what it is
torch_limbo.enable(exit_drain_ms=18, message_time_limit_ms=5, import_cache_pieces=0)
assert value_of("exit_drain_ms") == 18
torch_limbo.withdraw(message)
"""
    check(code)


def test_an_option_says_when_it_is_read() -> None:
    for option in torch_limbo.options():
        assert "read" in option.meaning or "fixed" in option.meaning, option


def test_a_background_thread_takes_the_default_for_what_it_cannot_read() -> None:
    """A process that only receives is never asked: what it keeps of the dead goes all the same."""
    with Peer(LIMBO_IMPORT_CACHE_PIECES="many") as reader:
        with Peer() as owner:
            reader.call(remote.receive, "t", owner.call(remote.make, "t", (3,), 1.0))
            opened = reader.call(remote.uses)[0]
            reader.call(remote.drop, "t")
            owner.call(remote.drop_all)
        wait_until(
            lambda: reader.call(remote.uses)[0] < opened, "the dead one's tables stay open there"
        )
