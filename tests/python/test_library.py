"""Finding, loading and installing: before any memory is lent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_limbo
from torch_limbo import LimboError, _library


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_import_starts_nothing() -> None:
    code = """
import os
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # else threads of numpy's
import torch, torch.multiprocessing, numpy
def threads():
    tasks = os.listdir("/proc/self/task")
    return {task: open(f"/proc/self/task/{task}/comm").read() for task in tasks}
before = threads()
import torch_limbo
new = {task: name for task, name in threads().items() if task not in before}
assert not new, new
assert not torch.cuda.is_initialized()
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_import_without_a_library_fails_only_where_it_is_needed() -> None:
    code = """
import pickle
import torch, torch_limbo
from multiprocessing.reduction import ForkingPickler
assert pickle.loads(ForkingPickler.dumps(torch.ones(3))).tolist() == [1, 1, 1]
try:
    torch_limbo.enable()
except torch_limbo.LimboError as error:
    assert error.code == "no_library", error
    assert "/nowhere/libtorch_limbo.so" in str(error), error
else:
    raise SystemExit("enabled without a library")
"""
    done = run_python(code, LIMBO_LIBRARY="/nowhere/libtorch_limbo.so")
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "libtorch_limbo.so"
    broken.write_bytes(b"no library")
    code = """
import torch_limbo
try:
    torch_limbo.library_path()
except torch_limbo.LimboError as error:
    print(error.code, error)
"""
    done = run_python(code, LIMBO_LIBRARY=str(broken))
    assert done.stdout.startswith("no_library"), done.stderr
    assert str(broken) in done.stdout


def test_a_library_of_another_version_is_named(tmp_path: Path) -> None:
    other = tmp_path / "libtorch_limbo.so"
    # A library without any of our functions stands for one that lacks some.
    shutil.copy(Path(torch.__file__).parent / "lib" / "libshm.so", other)
    code = """
import torch_limbo
try:
    torch_limbo.library_path()
except torch_limbo.LimboError as error:
    print(error.code, error)
"""
    done = run_python(code, LIMBO_LIBRARY=str(other))
    assert done.stdout.startswith("no_library"), done.stderr
    assert f"{other} is not of this version of the package" in done.stdout


def test_another_torch_is_refused_before_loading() -> None:
    with pytest.raises(LimboError, match=r"torch 2\.12\.1\+cu130 is running") as caught:
        _library.check_torch_version("2.12.1+cu130")
    assert caught.value.code == "wrong_torch"
    _library.check_torch_version("2.11.3")


def test_a_second_copy_of_the_library_is_refused(tmp_path: Path) -> None:
    code = """
import ctypes, sys
import torch
ctypes.CDLL(sys.argv[1])
import torch_limbo
try:
    torch_limbo.library_path()
except torch_limbo.LimboError as error:
    print(error.code, error)
"""
    other = tmp_path / "libtorch_limbo.so"
    other.write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", code, str(torch_limbo.library_path())],
        env={**os.environ, "LIMBO_LIBRARY": str(other)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.startswith("no_library"), done.stdout + done.stderr
    assert "can have only one" in done.stdout


def test_a_missing_library_is_named_where_another_is_loaded() -> None:
    code = """
import ctypes, sys
import torch
ctypes.CDLL(sys.argv[1])
import torch_limbo
try:
    torch_limbo.library_path()
except torch_limbo.LimboError as error:
    print(error.code, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(torch_limbo.library_path())],
        env={**os.environ, "LIMBO_LIBRARY": "/nowhere/libtorch_limbo.so"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.startswith("no_library"), done.stdout + done.stderr
    assert "/nowhere/libtorch_limbo.so" in done.stdout


def test_a_path_from_the_working_folder() -> None:
    library = torch_limbo.library_path()
    code = "import torch_limbo; print(torch_limbo.library_path())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LIMBO_LIBRARY": library.name},
        cwd=library.parent,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.strip() == str(library), done.stderr  # good in a child elsewhere, too


def test_the_library_is_found_where_stock_loading_put_it() -> None:
    code = """
import ctypes, os, sys
import torch
path = os.environ.pop("LIMBO_LIBRARY", None) or sys.argv[1]
ctypes.CDLL(path)
import torch_limbo
assert os.path.samefile(torch_limbo.library_path(), path)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(torch_limbo.library_path())],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        "backend:native",
        "no_such_key:1",
        "max_split_size_mb:x",  # torch throws what std::stoull does
        "max_split_size_mb:99999999999999999999999",
        "garbage_collection_threshold:x",
        "per_process_memory_fraction:x",
        "per_process_memory_fraction:7",
    ],
)
def test_a_configuration_that_cannot_be_is_refused(settings: str) -> None:
    code = """
import torch_limbo
try:
    torch_limbo.enable()
except torch_limbo.LimboError as error:
    print(error.code, error)
"""
    done = run_python(code, PYTORCH_CUDA_ALLOC_CONF=settings)
    assert done.stdout.startswith("bad_argument"), done.stdout + done.stderr
    assert settings in done.stdout


def test_the_allocator_as_an_object() -> None:
    code = """
import torch, torch_limbo
made = torch_limbo.LimboAllocator()
assert isinstance(made, torch.cuda.memory.CUDAPluggableAllocator)
assert torch.cuda.get_allocator_backend() == "native"
torch.cuda.memory.change_current_allocator(made)
assert torch.cuda.get_allocator_backend() == "limbo"
torch_limbo.enable()
assert torch.cuda.get_allocator_backend() == "limbo"
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


STOCK_LOADING = """
import sys
import torch, torch_limbo
library, allocate, free = sys.argv[1:] or (torch_limbo.library_path(), "limbo_malloc", "limbo_free")
torch.cuda.memory.change_current_allocator(  # which torch alone keeps
    torch.cuda.memory.CUDAPluggableAllocator(str(library), allocate, free)
)
"""


@pytest.mark.parametrize("plug_in", [(), ("libc.so.6", "malloc", "free")], ids=["limbo", "libc"])
def test_the_allocator_as_an_object_where_another_plug_in_is_torchs(
    plug_in: tuple[str, ...],
) -> None:
    code = """
made = torch_limbo.LimboAllocator()
assert made._allocator is torch_limbo.LimboAllocator()._allocator
assert torch.cuda.get_allocator_backend() == "pluggable"
assert torch.cuda.memory._get_current_allocator()._allocator is not made._allocator
"""
    done = run_python(STOCK_LOADING + code, *plug_in)
    assert done.returncode == 0, done.stderr


def test_stock_loading_and_then_enable() -> None:
    """torch keeps its wrapper, and whatever it has handed out is freed through it."""
    code = """
wrapper = torch._C._cuda_getAllocator()
torch_limbo.enable()
assert torch.cuda.get_allocator_backend() == "limbo"
assert torch._C._cuda_getAllocator() is wrapper
"""
    done = run_python(STOCK_LOADING + code)
    assert done.returncode == 0, done.stderr


def test_another_plug_in_is_refused_whenever_enable_comes() -> None:
    """It says that it is initialised from the start, so coming earlier would not help."""
    code = """
try:
    torch_limbo.enable()
except torch_limbo.LimboError as error:
    assert error.code == "already_in_use", error
    print(error)
assert torch.cuda.get_allocator_backend() == "pluggable"
"""
    done = run_python(STOCK_LOADING + code, "libc.so.6", "malloc", "free")
    assert done.returncode == 0, done.stderr
    assert "change_current_allocator" in done.stdout
    assert "first CUDA tensor" not in done.stdout


def test_numbers_of_every_visible_device(tmp_path: Path) -> None:
    code = """
import torch, torch_limbo
before = torch_limbo.stats()
assert before["devices"] == [] and before["allocated_bytes"] == 0
kept = torch.ops.limbo.sim_empty([1000], dtype=torch.uint8, device=1)
unused, used = torch_limbo.stats()["devices"]
assert (unused["device"], unused["reserved_bytes"]) == (0, 0)
assert (used["device"], used["allocated_bytes"]) == (1, 1024)
"""
    machine = str(tmp_path / "machine")
    done = run_python(code, LIMBO_SIM_DEVICES="2", LIMBO_SIM_MACHINE=machine)
    assert done.returncode == 0, done.stderr


def test_options_are_documented() -> None:
    options = torch_limbo.options()
    assert options
    for option in options:
        assert option.meaning, option
        assert option.minimum <= option.default <= option.maximum, option


def test_an_option_comes_from_the_environment() -> None:
    code = """
import torch_limbo
print({o.name: o.value for o in torch_limbo.options()}["exit_drain_ms"])
"""
    assert run_python(code, LIMBO_EXIT_DRAIN_MS="77").stdout.strip() == "77"


def test_broken_bytes_are_told_before_a_device_is_looked_for() -> None:
    code = """
import torch_limbo
for data in (b"", b"x", b"x" * 200):
    for call in (torch_limbo.receive, torch_limbo.withdraw):
        try:
            call(data)
        except torch_limbo.LimboError as error:
            assert error.code == "bad_descriptor", error
        else:
            raise SystemExit("opened")
"""
    done = run_python(code, LIMBO_DEVICE="cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr


def test_errors_survive_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(LimboError("gone", "The message is over.")))
    assert (error.code, str(error)) == ("gone", "The message is over.")
