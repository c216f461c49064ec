"""What programs do with the allocator: random work, libraries, every function there is."""

from __future__ import annotations

import inspect
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import (
    GIB,
    KIB,
    MIB,
    NATIVE,
    check_statistics,
    empty,
    full,
    in_a_process,
    in_threads,
    memory_use,
    settle,
    stat,
)

pytestmark = pytest.mark.usefixtures("allocator")


def test_ten_thousand_random_operations() -> None:
    """Every block keeps the value that was written into it until it is freed."""
    choose = random.Random(123)
    live: list[tuple[int, torch.Tensor]] = []
    words = 0
    most = GIB // 40
    for number in range(10_000):
        while words >= most:
            words -= check_and_drop(live, choose)
        dice = choose.random()
        if dice < 0.05:
            torch.cuda.empty_cache()
        elif dice < 0.525 or not live:
            count = choose.randrange(2 * MIB // 4, 20 * MIB // 4)
            live.append((number, torch.full((count,), number, dtype=torch.int32, device="cuda")))
            words += count
        else:
            words -= check_and_drop(live, choose)
    while live:
        check_and_drop(live, choose)
    check_statistics()


def check_and_drop(live: list[tuple[int, torch.Tensor]], choose: random.Random) -> int:
    value, tensor = live.pop(choose.randrange(len(live)))
    assert bool((tensor == value).all()), f"a block with {value} was overwritten"
    return tensor.numel()


def test_random_operations_with_everything_at_once() -> None:
    """Small and large blocks on three streams, pools, record_stream, history, statistics."""
    choose = random.Random(7)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    pools = [torch.cuda.MemPool() for _ in range(2)]
    live: list[tuple[int, torch.cuda.Stream, torch.Tensor]] = []
    for number in range(4000):
        dice = choose.random()
        if dice < 0.5 or not live:
            size = choose.choice([1, 511, 513, 5000, 70_000, MIB, MIB + 1, 3 * MIB, 11 * MIB])
            stream = choose.choice(streams)
            value = number % 251
            with torch.cuda.stream(stream):
                if dice < 0.15:
                    with torch.cuda.use_mem_pool(choose.choice(pools)):
                        tensor = full(size, value)
                else:
                    tensor = full(size, value)
            live.append((value, stream, tensor))
        elif dice < 0.95:
            value, stream, tensor = live.pop(choose.randrange(len(live)))
            if choose.random() < 0.3:
                other = choose.choice(streams)
                other.wait_stream(stream)
                tensor.record_stream(other)
                stream = other
            with torch.cuda.stream(stream):
                assert bool((tensor == value).all())
        elif dice < 0.96:
            torch.cuda.empty_cache()
        elif dice < 0.97:
            check_statistics()
        elif dice < 0.98:
            torch.cuda.memory._record_memory_history(
                choose.choice([None, "all"]), context=None, max_entries=1000
            )
        if len(live) > 150:
            live.pop(choose.randrange(len(live)))
    del tensor
    live.clear()
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    check_statistics()
    pools.clear()


def test_random_operations_in_many_threads() -> None:
    def work(index: int) -> None:
        choose = random.Random(index)
        stream = torch.cuda.Stream() if index % 2 else torch.cuda.default_stream()
        live: list[tuple[int, torch.Tensor]] = []
        with torch.cuda.stream(stream):
            for number in range(400):
                size = choose.choice([600, 5000, 70_000, MIB + 1, 3 * MIB])
                live.append((number % 251, full(size, number % 251)))
                if len(live) > 12:
                    check_and_drop(live, choose)
                if number % 100 == index:
                    torch.cuda.empty_cache()

    in_threads(8, work)
    check_statistics()


def mixed_operator(choose: random.Random) -> torch.Tensor:
    """One operator of many kinds, empty operands among them."""
    rows, columns = choose.choice([0, 1, 7, 64, 300]), choose.choice([1, 33, 256])
    x = torch.randn(rows, columns, device="cuda")
    work: Any = choose.choice(
        [
            lambda: x @ x.T,
            lambda: torch.softmax(x, dim=-1),
            lambda: torch.cat([x, x[: rows // 2]]),
            lambda: x.sort(dim=-1).values,
            lambda: x.cumsum(0),
            lambda: x[x > 0],
            lambda: x.to(torch.float16).float(),
            lambda: torch.nn.functional.layer_norm(x, (columns,)),
            lambda: torch.nonzero(x > 1).float(),
            lambda: torch.stack([x, x]).mean(0),
            lambda: x.unique(),
            lambda: x.reshape(-1).repeat(3),
        ]
    )
    result: torch.Tensor = work()
    return result


def test_every_free_has_what_its_allocation_had() -> None:
    """A thousand mixed operators: address, size and stream of a free are its allocation's."""
    choose = random.Random(11)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    torch.cuda.memory._record_memory_history(
        "all", context=None, max_entries=1_000_000, clear_history=True
    )
    try:
        kept: list[torch.Tensor] = []
        for _ in range(1000):
            with torch.cuda.stream(choose.choice(streams)):
                kept.append(mixed_operator(choose))
            if len(kept) > 20:
                kept.pop(choose.randrange(len(kept)))
        kept.clear()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    live: dict[int, tuple[int, int]] = {}
    asked_back: dict[int, tuple[int, int]] = {}
    before = 0  # blocks that were allocated before anything was noted
    for entry in snapshot["device_traces"][0]:
        if entry["action"] not in ("alloc", "free_requested", "free_completed"):
            continue
        what = (entry["size"], entry["stream"])
        address = entry["addr"]
        assert entry["size"] > 0
        if entry["action"] == "alloc":
            assert address not in live
            live[address] = what
        elif entry["action"] == "free_requested":
            if address not in live:
                before += 1
            else:
                assert live.pop(address) == what
                asked_back[address] = what
        elif address in asked_back:
            assert asked_back.pop(address) == what
    assert before < 10
    assert not asked_back, "every free was completed"


def test_cudnn_tries_its_algorithms() -> None:
    """Benchmark mode asks how much memory there is (cacheInfo) and takes large workspaces."""
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(32, 64, 5, padding=2).cuda()
    images = torch.randn(16, 32, 64, 64, device="cuda", requires_grad=True)
    before = torch.backends.cudnn.benchmark
    results: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for benchmark in (False, True):
            torch.backends.cudnn.benchmark = benchmark
            images.grad = None
            result = convolution(images)
            result.square().mean().backward()
            assert images.grad is not None
            results.append((result.detach().clone(), images.grad.clone()))
    finally:
        torch.backends.cudnn.benchmark = before
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=2e-2)
    check_statistics()
    convolution.zero_grad()
    images.grad = None


def test_a_pool_that_is_registered_with_nccl() -> None:
    """NCCL's registration of a pool's segments follows the allocator's trace."""
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    result = in_a_process(
        """
import tempfile
import torch.distributed as dist
store = dist.FileStore(tempfile.mktemp(), 1)
torch.cuda.set_device(0)
dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda:0"))
tensor = torch.ones(1000, device="cuda")
dist.all_reduce(tensor)
backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda:0"))
try:
    pool = torch.cuda.MemPool(backend.mem_allocator)
except RuntimeError:  # this NCCL or this driver has none of its own
    pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    first = torch.ones(3 * MIB, device="cuda")
backend.register_mem_pool(pool)
dist.all_reduce(first)
with torch.cuda.use_mem_pool(pool):
    second = torch.ones(30 * MIB, device="cuda")
dist.all_reduce(second)
torch.cuda.synchronize()
right = [float(first.max()), float(second.max())]
backend.deregister_mem_pool(pool)
del first, second, pool
torch.cuda.empty_cache()
dist.destroy_process_group()
report(right=right)
"""
    )
    assert result["right"] == [1.0, 1.0]


def test_tensors_that_are_pickled_saved_and_moved(tmp_path: Path) -> None:
    tensor = torch.arange(100_000, device="cuda")
    file = tmp_path / "tensor.pt"
    torch.save(tensor, file)
    assert torch.equal(torch.load(file, map_location="cuda"), tensor)
    pinned = tensor.cpu().pin_memory()
    assert torch.equal(pinned.to("cuda", non_blocking=True), tensor)
    numbers = torch.cuda.host_memory_stats()
    assert numbers["allocated_bytes.current"] >= pinned.numel() * 8
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    assert torch.cuda.host_memory_stats_as_nested_dict()


def test_frees_while_the_interpreter_ends() -> None:
    """Tensors that live until the very end: no error, no noise."""
    code = """
import atexit, sys, threading, torch
if len(sys.argv) > 1:
    import torch_limbo
    torch_limbo.enable()
class Keeper:
    def __init__(self):
        self.tensors = [torch.ones(1000 * (index + 1), device="cuda") for index in range(50)]
        self.cycle = self
keeper = Keeper()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = keeper.tensors[0] + 1
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.ones(1000, device="cuda")
torch.cuda.memory._record_memory_history()
atexit.register(lambda: keeper.tensors.append(torch.ones(7, device="cuda")))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *([] if NATIVE else ["limbo"])],
        env={**os.environ, "LIMBO_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_large_model_that_is_made_and_dropped_again() -> None:
    before = memory_use()
    for _ in range(3):
        layers = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(20)]).cuda()
        output = layers(torch.randn(64, 1024, device="cuda"))
        output.sum().backward()
        del layers, output
        settle()
        assert memory_use() == before


# ---- every function of torch.cuda.memory --------------------------------------------------------


def use_alloc_and_delete() -> None:
    pointer = torch.cuda.memory.caching_allocator_alloc(100)
    torch.cuda.memory.caching_allocator_delete(pointer)


def use_enable() -> None:
    torch.cuda.memory.caching_allocator_enable(False)
    torch.cuda.memory.caching_allocator_enable(True)


def use_fractions() -> None:
    before = torch.cuda.memory.get_per_process_memory_fraction()
    torch.cuda.memory.set_per_process_memory_fraction(0.5)
    torch.cuda.memory.set_per_process_memory_fraction(before)


def use_pools() -> None:
    pool = torch.cuda.memory.MemPool()
    with torch.cuda.memory.use_mem_pool(pool):
        empty(100)
    assert torch.cuda.memory.memory_snapshot(pool.id)


def use_a_plug_in_that_comes_too_late() -> None:
    current = torch.cuda.memory._get_current_allocator()
    with pytest.raises(RuntimeError, match="already initialized"):
        torch.cuda.memory.change_current_allocator(current)


def use_list_gpu_processes() -> None:
    try:
        assert isinstance(torch.cuda.memory.list_gpu_processes(), str)
    except ModuleNotFoundError:
        pytest.skip("list_gpu_processes needs NVIDIA's Python bindings")


memory: Any = torch.cuda.memory
EVERY_FUNCTION: dict[str, Any] = {
    "caching_allocator_alloc": use_alloc_and_delete,
    "caching_allocator_delete": use_alloc_and_delete,
    "caching_allocator_enable": use_enable,
    "get_per_process_memory_fraction": use_fractions,
    "set_per_process_memory_fraction": use_fractions,
    "empty_cache": memory.empty_cache,
    "memory_stats": memory.memory_stats,
    "memory_stats_as_nested_dict": memory.memory_stats_as_nested_dict,
    "reset_accumulated_memory_stats": memory.reset_accumulated_memory_stats,
    "reset_peak_memory_stats": memory.reset_peak_memory_stats,
    "reset_max_memory_allocated": memory.reset_max_memory_allocated,
    "reset_max_memory_cached": memory.reset_max_memory_cached,
    "host_memory_stats": memory.host_memory_stats,
    "host_memory_stats_as_nested_dict": memory.host_memory_stats_as_nested_dict,
    "reset_accumulated_host_memory_stats": memory.reset_accumulated_host_memory_stats,
    "reset_peak_host_memory_stats": memory.reset_peak_host_memory_stats,
    "memory_allocated": memory.memory_allocated,
    "max_memory_allocated": memory.max_memory_allocated,
    "memory_reserved": memory.memory_reserved,
    "max_memory_reserved": memory.max_memory_reserved,
    "memory_cached": memory.memory_cached,
    "max_memory_cached": memory.max_memory_cached,
    "memory_snapshot": memory.memory_snapshot,
    "memory_summary": memory.memory_summary,
    "list_gpu_processes": use_list_gpu_processes,
    "mem_get_info": memory.mem_get_info,
    "get_allocator_backend": memory.get_allocator_backend,
    "CUDAPluggableAllocator": use_a_plug_in_that_comes_too_late,
    "change_current_allocator": use_a_plug_in_that_comes_too_late,
    "MemPool": use_pools,
    "use_mem_pool": use_pools,
}


@pytest.mark.parametrize("name", sorted(EVERY_FUNCTION))
def test_every_function_of_torch_cuda_memory(name: str) -> None:
    tensor = empty(3 * MIB)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        EVERY_FUNCTION[name]()
        if "device" in inspect.signature(EVERY_FUNCTION[name]).parameters:
            EVERY_FUNCTION[name](device=0)
            EVERY_FUNCTION[name](device=torch.device("cuda"))
    del tensor
    check_statistics()


def test_no_function_is_forgotten() -> None:
    assert set(EVERY_FUNCTION) == set(torch.cuda.memory.__all__)


def test_sizes_of_requests_of_all_kinds() -> None:
    """Each size from one byte up by about a fifth: enough room, and the right contents."""
    size, live = 1, []
    while size < 200 * MIB:
        live.append((size % 251, full(size, size % 251)))
        size += size // 5 + 1
    assert len({tensor.data_ptr() for _, tensor in live}) == len(live)
    for value, tensor in live:
        assert bool((tensor == value).all())
    assert stat("requested_bytes") >= sum(tensor.numel() for _, tensor in live)
    assert stat("allocated_bytes") - stat("requested_bytes") < len(live) * MIB
    del live, tensor
    assert empty(KIB).numel() == KIB
