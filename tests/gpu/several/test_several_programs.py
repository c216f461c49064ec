"""Programs that use two GPUs, with Limbo as the allocator of all their processes."""

from __future__ import annotations

import pytest
import torch.distributed
from contract import in_a_process
from several_scripts import run_several


def test_scatter_gather_and_data_parallel() -> None:
    result = in_a_process(
        """
torch.manual_seed(0)
batch = torch.randn(64, 32, device="cuda:0")
parts = torch.nn.parallel.scatter(batch, [0, 1])
gathered = torch.nn.parallel.gather(parts, 0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
parallel = torch.nn.DataParallel(model, [0, 1])
losses = []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    out = parallel(batch)
    alone = model(batch)
    difference = float((out - alone).abs().max())
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
copies = torch.nn.parallel.comm.broadcast(batch, [0, 1])
report(
    devices=[part.device.index for part in parts],
    gathered=bool((gathered == batch).all()),
    difference=difference,
    falls=losses[-1] < losses[0],
    copies=[bool((copy.cpu() == batch.cpu()).all()) for copy in copies],
)
"""
    )
    assert result["devices"] == [0, 1]
    assert result["gathered"]
    assert result["difference"] < 1e-4
    assert result["falls"]
    assert result["copies"] == [True, True]


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="needs NCCL")
def test_distributed_data_parallel_over_nccl() -> None:
    result = run_several("distributed.py")
    assert result["backends"] == ["limbo", "limbo"]
    assert result["devices"] == [0, 1]
    first, second = result["losses"]
    assert len(first) == len(second) == 20
    assert result["same_parameters"], "the two processes have different parameters"
    assert result["difference"] < 1e-4, "other parameters than one process on the whole batch has"
    assert result["exits"] == [0, 0]


def test_queues_between_processes_on_different_gpus() -> None:
    result = run_several("queues.py")
    assert result["wrong"] == []
    assert result["left"] == {"limbo_blocks": 0, "active_bytes": 0, "in_flight": 0}
    assert result["exit"] == 0


@pytest.mark.parametrize("way", ["mapped", "link"])
def test_weights_handed_over_fifty_times(way: str) -> None:
    result = run_several("weights.py", way)
    assert result["wrong"] == []
    assert result["rounds"] == 50
    for process in ("trainer", "server"):
        early, late = result[process]
        assert late["allocated"] == early["allocated"], process
        assert late["reserved"] == early["reserved"], process
        assert late["descriptors"] <= early["descriptors"], process
        assert late["free"] + result["bucket_bytes"] >= early["free"], process
    assert [each["pieces_mapped"] for each in result["trainer"]] == [0, 0]
    # Which of the trainer's segments a round takes is chance; no more than it has are mapped.
    for use in result["server"]:
        assert 0 < use["pieces_mapped"] <= result["trainers_segments"]
    assert result["left"]["limbo_blocks"] == 0
    assert result["left"]["in_flight"] == 0
    assert result["exit"] == 0
