"""DeviceMeshes over groups that exist."""

from __future__ import annotations

import pytest

import meshkit
from meshkit.live import create

from . import jobs


def test_patterns_give_names_ranks_and_groups_that_agree() -> None:
    found = meshkit.spawn(jobs.device_meshes, 8, timeout=60)[5]  # pp=1 dp=0 sp=1 tp=0
    assert found[None] == (
        ("pp", "dp", "sp", "tp"),
        [[[[0], [1]], [[2], [3]]], [[[4], [5]], [[6], [7]]]],
        [[1, 5], [5, 7], [4, 5], [5]],
    )
    # with pp left out, a mesh covers the ranks of this stage
    assert found["(dp sp) tp"] == (("dp_sp", "tp"), [[4], [5], [6], [7]], [[4, 5, 6, 7], [5]])
    assert found["dp sp"] == (("dp", "sp"), [[4, 5], [6, 7]], [[5, 7], [4, 5]])
    assert found["tp"] == (("tp",), [5], [[5]])
    assert found["pp"] == (("pp",), [1, 5], [[1, 5]])
    assert found["(pp dp) sp"] == (
        ("pp_dp", "sp"),
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[1, 3, 5, 7], [4, 5]],
    )
    assert found["(pp dp sp tp)"] == (("pp_dp_sp_tp",), [*range(8)], [[*range(8)]])


def test_patterns_that_cannot_be_are_refused() -> None:
    patterns = ["", "(dp", "dp)", "dp ((sp))", "()", "dp dp", "dp tq", "(sp dp)", "dp-sp"]
    for told in meshkit.spawn(jobs.refused_patterns, 4, (patterns,), timeout=60):
        kinds = [text.partition(":")[0] for text in told]
        assert kinds == ["SpecError"] * 6 + ["UnknownAxisError"] + ["SpecError"] * 2
        assert told[7] == (
            "SpecError: mesh.group('sp', 'dp'): no group over sp dp was built.\n"
            "  Built are (dp), (sp); a getter never creates one.\n"
            "  Fix: build_mesh(dp=2, sp=2, groups=['sp dp'])."
        )


def test_a_group_of_another_axis_is_refused_before_torch_sees_it() -> None:
    for rank, told in enumerate(meshkit.spawn(jobs.swapped_groups, 4, timeout=60)):
        dp, sp = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
        assert told == (
            "mesh.device_mesh('dp sp'): the group over dp is not the one the mesh says.\n"
            f"  The group holds {sp}, the mesh says {dp}.\n"
            "  Fix: use the groups of this mesh only."
        )


@pytest.mark.skipif(not create.KEEPS_ORDER, reason="FSDP2 on the cpu: not in torch 2.6")
def test_fsdp2_and_dtensor_run_on_them() -> None:
    for gradient, tensor, rows in meshkit.spawn(jobs.fsdp_and_tensor, 4, timeout=60):
        assert gradient < 1e-6
        assert tensor == 0
        assert rows == 2
