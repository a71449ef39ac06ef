"""DeviceMeshes of a mesh under torch's own stack: FSDP2, HSDP, TP, DDP, DTensor, compile.

Each gradient, put together again, is compared with that of one process over all samples, in
float64. torch.distributed.checkpoint from one mesh to another: tests/examples/test_fsdp_tp.py.
"""

from __future__ import annotations

import pytest

import meshkit
from meshkit.live import create

from . import torch_jobs as jobs

pytestmark = pytest.mark.skipif(not create.KEEPS_ORDER, reason="FSDP2 on the cpu: not in torch 2.6")


def test_fsdp2_on_one_axis_on_two_and_beside_tp_and_ddp() -> None:
    for found in meshkit.spawn(jobs.shards, 8, timeout=120):
        assert set(found["gaps"]) == {"1-D", "with tp", "in a stage", "DDP", "HSDP"}
        assert max(found["gaps"].values()) < 1e-12, found
        assert found["placements"] == ["Replicate()", "Shard(dim=0)"]
        assert found["made"] == 0  # views and DeviceMeshes cost no group


def test_dtensor_on_a_root_and_on_slices() -> None:
    for found in meshkit.spawn(jobs.tensors, 8, timeout=120):
        assert found == {
            "spread": True,
            "turned": True,
            "slice": True,
            "whole": True,
            "sum": 0,
            "made": 0,
        }


def test_context_parallel_cuts_along_the_axis() -> None:
    halves = []
    for found in meshkit.spawn(jobs.context, 4, timeout=120):
        halves.append(found["mine"])
        assert found["after"] == [*range(8)]
        assert "scaled_dot_product_flash_attention_for_cpu" in found["said"]  # never run here
    # balanced for causal attention: the first and the last part, then those between
    assert halves == [[0, 1, 6, 7], [2, 3, 4, 5]] * 2


def test_zigzag_is_context_parallels_head_and_tail() -> None:
    assert meshkit.spawn(jobs.head_tail, 4, (24,), timeout=120) == [[True, True]] * 4


def test_a_mesh_after_an_equal_one_does_not_meet_its_groups() -> None:
    assert meshkit.spawn(jobs.again, 4, timeout=120) == [[4.0, 4.0, 4.0]] * 4


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_step(backend: str) -> None:
    for loss, gap in meshkit.spawn(jobs.compiled, 2, (backend,), timeout=300):
        assert loss < 1e-12
        assert gap < 1e-12
