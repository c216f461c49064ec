"""Statistics, snapshots, limits and out of memory are each GPU's own."""

from __future__ import annotations

from contract import in_a_process

DEVICES = """
def on(device, mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=f"cuda:{device}")
def reserved():
    return [torch.cuda.memory_reserved(device) // MIB for device in (0, 1)]
def allocated():
    return [torch.cuda.memory_allocated(device) // MIB for device in (0, 1)]
def room(device, mib):
    total = torch.cuda.mem_get_info(device)[1]
    limit = torch.cuda.memory_reserved(device) + mib * MIB
    torch.cuda.set_per_process_memory_fraction((limit + 0.5) / total, device)
def refused(device, mib):
    try:
        on(device, mib)
    except torch.OutOfMemoryError as error:
        return f"GPU {device} " in str(error)
    return False
"""


def test_statistics_and_snapshot_of_each() -> None:
    result = in_a_process(
        DEVICES
        + """
held = [on(0, 30), on(1, 50), on(1, 1)]
sums = [[0, 0, 0], [0, 0, 0]]
for segment in torch.cuda.memory_snapshot():
    of_device = sums[segment["device"]]
    of_device[0] += segment["total_size"]
    of_device[1] += segment["allocated_size"]
    of_device[2] += sum(block["size"] for block in segment["blocks"])
numbers = []
for device in (0, 1):
    stats = torch.cuda.memory_stats(device)
    numbers.append([stats["reserved_bytes.all.current"], stats["allocated_bytes.all.current"],
                    stats["reserved_bytes.all.current"]])
del held
peaks = [torch.cuda.max_memory_allocated(device) // MIB for device in (0, 1)]
torch.cuda.reset_peak_memory_stats(1)
after = [torch.cuda.max_memory_allocated(device) // MIB for device in (0, 1)]
report(sums=sums, numbers=numbers, peaks=peaks, after=after, allocated=allocated())
"""
    )
    assert result["sums"] == result["numbers"]
    assert result["peaks"] == [30, 51]
    assert result["after"] == [30, 0]
    assert result["allocated"] == [0, 0]


def test_out_of_memory_on_one_leaves_the_others_memory() -> None:
    result = in_a_process(
        DEVICES
        + """
kept = [on(0, 40), on(0, 80)]
del kept
cached = [on(1, 40), on(1, 60)]
del cached
before = reserved()
room(1, 0)
large = on(1, 90)  # fits when what is cached there goes back first
between = reserved()
first = refused(1, 200)
after = reserved()
del large
ooms = [torch.cuda.memory_stats(device)["num_ooms"] for device in (0, 1)]
retries = [torch.cuda.memory_stats(device)["num_alloc_retries"] for device in (0, 1)]
torch.cuda.empty_cache()
report(before=before, between=between, refused=first, after=after, ooms=ooms, retries=retries,
       empty=reserved(), other=on(0, 200).numel() // MIB)
"""
    )
    assert result["before"] == [120, 100]
    assert result["between"] == [120, 90]
    assert result["refused"]
    assert result["after"] == [120, 90]
    assert result["ooms"] == [0, 1]
    assert result["retries"][0] == 0
    assert result["retries"][1] > 0
    assert result["empty"] == [0, 0]
    assert result["other"] == 200


def test_threads_that_change_the_gpu_on_every_call() -> None:
    result = in_a_process(
        """
import threading
wrong = []
def work(number):
    held = []
    for count in range(400):
        device = (count + number) % 2
        if count % 3 == 0:
            torch.cuda.set_device(device)
            tensor = torch.empty(64 + 100 * number, dtype=torch.int32, device="cuda")
        elif count % 3 == 1:
            with torch.cuda.device(device):
                tensor = torch.empty(64 + 100 * number, dtype=torch.int32, device="cuda")
        else:
            tensor = torch.empty(64 + 100 * number, dtype=torch.int32, device=f"cuda:{device}")
        tensor.fill_(count)
        held.append((device, count, tensor))
        if len(held) > 16:
            device, count, tensor = held.pop(0)
            if tensor.device.index != device or not bool((tensor == count).all()):
                wrong.append((number, device, count, str(tensor.device)))
threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
report(wrong=wrong, allocated=[torch.cuda.memory_allocated(device) for device in (0, 1)])
"""
    )
    assert result == {"wrong": [], "allocated": [0, 0]}
