"""PYTORCH_CUDA_ALLOC_CONF's keys, and their changes while the program runs.

Each case in a process of its own: settings stay.
"""

from __future__ import annotations

import pytest
from contract import MIB, in_a_process, native_differs

pytestmark = pytest.mark.usefixtures("allocator")

HELPERS = """
torch.cuda.init()
set_settings = torch._C._accelerator_setAllocatorSettings
def empty(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
def stat(name):
    return torch.cuda.memory_stats()[name]
def segment_sizes():
    return sorted(segment["total_size"] // MIB for segment in torch.cuda.memory_snapshot())
"""

ROUNDING = (
    HELPERS
    + """
taken = {}
def measure(what, mib):
    before = stat("allocated_bytes.all.current")
    requested = stat("requested_bytes.all.current")
    tensor = empty(mib)
    taken[what] = (stat("allocated_bytes.all.current") - before) / MIB
    assert stat("requested_bytes.all.current") - requested == int(mib * MIB)
    del tensor
    torch.cuda.empty_cache()
"""
)


def test_rounding_by_divisions_of_powers_of_two() -> None:
    result = in_a_process(
        ROUNDING
        + """
measure("none", 84)
set_settings("roundup_power2_divisions:4")
measure("four", 84)
measure("four, exact", 64)
set_settings("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]")
measure("list, 84", 84)
measure("list, 200", 200)
measure("list, 400", 400)
set_settings("garbage_collection_threshold:0.5")
measure("reset", 84)
report(**taken)
"""
    )
    assert result == {
        "none": 84,
        "four": 96,
        "four, exact": 64,
        "list, 84": 88,
        "list, 200": 256,
        "list, 400": 512,
        "reset": 84,
    }


def test_rounding_from_the_environment() -> None:
    result = in_a_process(
        ROUNDING + "measure('four', 84)\nreport(**taken)\n",
        PYTORCH_CUDA_ALLOC_CONF="roundup_power2_divisions:4",
    )
    assert result == {"four": 96}


MAX_SPLIT = (
    HELPERS
    + """
large = empty(100)
del large
after_large = torch.cuda.memory_reserved()
small = empty(30)       # must not cut the free 100 MiB up
after_small = torch.cuda.memory_reserved()
near = empty(90)        # may take it whole
after_near = torch.cuda.memory_reserved()
far = empty(50)         # more than 20 MiB of waste in any free block
after_far = torch.cuda.memory_reserved()
report(small=(after_small - after_large) // MIB, near=(after_near - after_small) // MIB,
       far=(after_far - after_near) // MIB, oversize=stat("oversize_allocations.current"),
       segments=stat("oversize_segments.current"), setting=stat("max_split_size"))
"""
)


@pytest.mark.parametrize("live", [False, True])
def test_large_blocks_are_not_cut_up(live: bool) -> None:
    setting = "max_split_size_mb:40"
    if live:
        result = in_a_process(
            HELPERS + f"empty(1)\nset_settings({setting!r})\ntorch.cuda.empty_cache()\n" + MAX_SPLIT
        )
    else:
        result = in_a_process(MAX_SPLIT, PYTORCH_CUDA_ALLOC_CONF=setting)
    assert (result["small"], result["near"], result["far"]) == (30, 0, 50)
    assert result["oversize"] == 2
    assert result["segments"] == 2
    assert result["setting"] == 40 * MIB


def test_out_of_memory_with_a_split_limit() -> None:
    result = in_a_process(
        HELPERS
        + """
set_settings("max_split_size_mb:1024")
torch.cuda.empty_cache()
try:
    empty(1 << 22)
    kind = ""
except Exception as error:
    kind = type(error).__name__
total = torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction(4096.5 * MIB / total)
parts = [empty(1200) for _ in range(3)]
del parts
whole = empty(3600)     # the free ones are given back for it
report(kind=kind, whole=whole.numel() // MIB, retried=stat("num_alloc_retries"))
"""
    )
    assert result["kind"] == "OutOfMemoryError"
    assert result["whole"] == 3600


@pytest.mark.parametrize("live", [False, True])
def test_garbage_collection(live: bool) -> None:
    """Beyond the threshold the longest unused segments go back before new memory is taken."""
    code = """
total = torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction(1000.5 * MIB / total)
kept = [empty(100) for _ in range(4)]
dropped = [empty(60 + index) for index in range(5)]
del dropped
before = torch.cuda.memory_reserved() // MIB
new = empty(150)
report(before=before, after=torch.cuda.memory_reserved() // MIB,
       retries=stat("num_alloc_retries"), ooms=stat("num_ooms"))
"""
    setting = "garbage_collection_threshold:0.5"
    if live:
        result = in_a_process(HELPERS + f"set_settings({setting!r})\n" + code)
    else:
        result = in_a_process(HELPERS + code, PYTORCH_CUDA_ALLOC_CONF=setting)
    assert result["before"] >= 700
    assert result["after"] <= 500 + 150 + 70
    assert result["after"] >= 400 + 150
    assert (result["retries"], result["ooms"]) == (0, 0)


@pytest.mark.parametrize(("value", "expected"), [("0.0", 0.0), ("0.5", 0.5), ("1.0", 1.0)])
def test_a_fraction_from_the_environment(value: str, expected: float) -> None:
    result = in_a_process(
        "report(fraction=torch.cuda.get_per_process_memory_fraction(torch._C._cuda_getDevice()))",
        PYTORCH_CUDA_ALLOC_CONF=f"per_process_memory_fraction:{value}",
    )
    assert result["fraction"] == expected


def test_a_fraction_from_the_environment_is_kept_to() -> None:
    result = in_a_process(
        HELPERS
        + """
total = torch.cuda.mem_get_info()[1]
try:
    empty(total * 0.06 / MIB)
    kind = ""
except Exception as error:
    kind = type(error).__name__
report(kind=kind, fits=empty(total * 0.04 / MIB).numel() > 0)
""",
        PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.05",
    )
    assert result == {"kind": "OutOfMemoryError", "fits": True}


def test_wrong_settings_are_refused() -> None:
    result = in_a_process(
        HELPERS
        + """
texts = {}
for setting in ("foo:1,bar:2", "garbage_collection_threshold:1.2", "max_split_size_mb:2",
                "release_lock_on_cudamalloc:none", "pinned_use_cuda_host_register:none",
                "pinned_num_register_threads:none", "pinned_num_register_threads:1024"):
    try:
        set_settings(setting)
        texts[setting] = ""
    except (ValueError, RuntimeError) as error:
        texts[setting] = str(error)
tensor = torch.full((1000,), 3.0, device="cuda")
report(texts=texts, works=float(tensor.sum()) == 3000)
"""
    )
    assert all(result["texts"].values()), result["texts"]
    assert result["works"]


def test_settings_in_the_snapshot() -> None:
    result = in_a_process(
        """
torch.ones(1, device="cuda")
report(**{key: value for key, value in
          torch.cuda.memory._snapshot()["allocator_settings"].items()
          if isinstance(value, (bool, int, float, str))})
""",
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:100,garbage_collection_threshold:0.8",
    )
    assert "max_split_size_mb:100" in result["PYTORCH_CUDA_ALLOC_CONF"]
    assert result["max_split_size"] == 100 * MIB
    assert result["garbage_collection_threshold"] == 0.8
    assert result["expandable_segments"] is False


def test_no_lock_is_held_while_the_driver_allocates() -> None:
    result = in_a_process(
        HELPERS
        + """
import threading
set_settings("release_lock_on_cudamalloc:True")
right = []
def work(index):
    for round in range(20):
        tensor = torch.full(((index + 1) * 3 * MIB,), index, dtype=torch.uint8, device="cuda")
        right.append(int(tensor.max()) == index)
        if round % 5 == 0:
            torch.cuda.empty_cache()
threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
report(right=all(right), count=len(right))
"""
    )
    assert result == {"right": True, "count": 120}


def test_large_segments_of_another_size() -> None:
    result = in_a_process(
        HELPERS + "tensor = empty(3)\nreport(sizes=segment_sizes())\n",
        PYTORCH_CUDA_ALLOC_CONF="large_segment_size_mb:32",
    )
    assert result["sizes"] == [32]


@native_differs("torch would stop inside, later, at a back end that is not the one there is")
def test_another_back_end_is_refused() -> None:
    with pytest.raises(AssertionError, match="backend"):
        in_a_process("report()", PYTORCH_CUDA_ALLOC_CONF="backend:native")
