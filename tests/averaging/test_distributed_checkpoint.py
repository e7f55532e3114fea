"""Averages and groups in distributed checkpoints, on real gloo processes."""

from __future__ import annotations

import pytest

from helpers.averages import run_scenario
from helpers.torch_versions import NEEDS_FSDP2_ON_CPUS

pytestmark = NEEDS_FSDP2_ON_CPUS


@pytest.mark.slow
@pytest.mark.distributed
def test_a_distributed_checkpoint_loads_on_another_number_of_processes(tmp_path):
    run_scenario("checkpoint", tmp_path)
    run_scenario("resumed", tmp_path, world=2)
    run_scenario("resumed", tmp_path, world=1)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_group_is_restored_from_a_distributed_checkpoint(tmp_path):
    run_scenario("group_checkpoint", tmp_path)
