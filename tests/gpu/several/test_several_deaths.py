"""A consumer on the other GPU is killed while its kernel writes over the link."""

from __future__ import annotations

from gpu_scripts import check_canary, run_script


def test_a_consumer_on_another_gpu_killed_under_its_kernel() -> None:
    check_canary(run_script("killed_writer.py", "--across"))


def test_the_same_with_a_child_that_keeps_the_gpus_open() -> None:
    result = run_script("killed_writer.py", "--across", "--child")
    assert result["stayed_with_child"], "the block came back while the dead kernel could write"
    assert any("quarantine" in state for state in result["holders"])
    check_canary(result)
