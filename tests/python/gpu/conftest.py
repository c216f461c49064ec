"""Tests on a GPU. Most run a script of scripts/ in a process of its own and read its result; those
of the allocator's contract run in this one.

Without a GPU they are skipped by name, with the reason.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from gpu_scripts import why_no_gpu

#: pytest's exit code when an error has spoiled CUDA for the rest of the process.
CONTEXT_LOST = 86


_passed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[_passed] = report.passed
    return report


def pytest_report_teststatus(
    report: pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Most of a test is the start of processes, which takes as long as the machine is busy: with
    -v every line says how long it took, also where the run is ended before its summary."""
    if report.when != "call" or not report.passed or hasattr(report, "wasxfail"):
        return None
    if config.get_verbosity() < 1:
        return None
    return report.outcome, ".", f"PASSED ({report.duration:.1f} s)"


@pytest.fixture(autouse=True)
def _needs_gpu() -> None:
    reason = why_no_gpu()
    if reason:
        pytest.skip(f"needs a GPU: {reason}")


@pytest.fixture
def allocator(_needs_gpu: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """The allocator under test, in this process; afterwards its memory is as before."""
    import contract

    contract.install()
    contract.settle()
    contract.forget_old_objects()
    before = contract.memory_use()
    yield
    if contract.context_is_lost():
        pytest.exit("an error has spoiled CUDA for the rest of this process", CONTEXT_LOST)
    if not request.node.stash.get(_passed, False):
        return  # the tensors of a failed test are kept by its traceback
    contract.settle()
    after = contract.memory_use()
    assert after == before, f"the test leaves memory behind: {contract.what_is_there()}"


@pytest.fixture
def no_private_memory_is_left(allocator: None) -> Iterator[None]:  # noqa: ARG001
    """The same, and the private pools have as many segments as before, whatever those are."""
    import contract

    before = len(contract.private_segments())
    yield
    contract.settle()
    after = len(contract.private_segments())
    assert after == before, f"private pools keep segments: {contract.what_is_there()}"
