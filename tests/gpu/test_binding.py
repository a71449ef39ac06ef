"""The cost of a bound default group, and another library beside it. Never run on a GPU."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.torch_groups import bound_device
from tests.preloaded_python import run_python

DOCTOR = "import sys\nfrom meshkit.cli.main import main\nsys.exit(main())\n"


def test_doctor_measures_a_communicator() -> None:
    done = run_python(DOCTOR, "doctor", "--json")
    findings = {found["name"]: found for found in json.loads(done.stdout)["findings"]}
    assert findings["binding"]["ok"], findings["binding"]
    assert "a communicator of one rank on cuda:0" in findings["binding"]["found"]


@pytest.mark.parametrize("bind", [True, False])
def test_a_group_that_is_not_split_computes_beside_the_default_group(bind: bool) -> None:
    meshkit.init(rank=0, world_size=1, timeout=60, bind=bind)
    try:
        own = torch.device("cuda", 0) if bind else None
        assert bound_device() == own
        c10d: Any = dist.distributed_c10d
        args: Any = (1, 0, [], "nccl", dist.HashStore())
        with meshkit.unbound():
            limit = timedelta(seconds=60)
            group, _ = c10d._new_process_group_helper(*args, group_name="own", timeout=limit)
        c10d._world.pg_group_ranks[group] = {0: 0}
        total = torch.ones(1, device="cuda")
        dist.all_reduce(total, group=group)
        assert (int(total), bound_device()) == (1, own)
    finally:
        meshkit.shutdown()


def test_a_group_of_one_rank_needs_no_memory_before_its_first_collective() -> None:
    meshkit.init(rank=0, world_size=1, timeout=60)
    try:
        torch.ones(1, device="cuda").item()
        free = torch.cuda.mem_get_info()[0]
        mesh = meshkit.build_mesh(dp=1, share=False)
        assert torch.cuda.mem_get_info()[0] == free
        total = torch.ones(1, device="cuda")
        dist.all_reduce(total, group=mesh.group("dp"))
        assert int(total) == 1
        mesh.close()
    finally:
        meshkit.shutdown()
