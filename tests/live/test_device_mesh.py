"""DeviceMeshes over existing groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.live import groups as create


def make_device_meshes() -> Any:
    """Return names, shape and ranks of the DeviceMesh of each pattern, with pp=2."""
    with meshkit.build_mesh(pp=2, dp=2, sp=2, tp=1, groups=["pp dp"]) as mesh:
        found = {}
        for pattern in (None, "(dp sp) tp", "dp sp", "tp", "(pp dp) sp", "(pp dp sp tp)", "pp"):
            made = mesh.device_mesh(pattern)
            groups = [dist.get_process_group_ranks(made.get_group(i)) for i in range(made.ndim)]
            found[pattern] = (made.mesh_dim_names, made.mesh.tolist(), groups)
        return found


def test_patterns_give_names_ranks_and_groups_that_agree() -> None:
    found = meshkit.spawn(make_device_meshes, 8, timeout=60)[5]  # pp=1 dp=0 sp=1 tp=0
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


def slice_twice() -> list[Any]:
    """Return slices of DeviceMeshes that list their dims in and out of nesting order."""
    with meshkit.build_mesh(pp=1, dp=2, tp=2, order="pp tp dp", groups=["dp tp"]) as mesh:
        made = [mesh.device_mesh(pattern) for pattern in ("tp pp dp", "dp pp tp", "(dp tp)")]
        slices = [made[0]["tp", "dp"], made[1]["dp", "tp"], made[2]]
        return [sliced.mesh.tolist() for sliced in slices]


@pytest.mark.skipif(not create.KEEPS_ORDER, reason="groups out of order: torch 2.12 and newer")
def test_a_device_mesh_can_be_sliced_whatever_the_order_of_its_dims() -> None:
    for found in meshkit.spawn(slice_twice, 4, timeout=60):
        assert found == [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [0, 2, 1, 3]]


def request_patterns(patterns: list[str]) -> list[str]:
    outcomes = []
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        for pattern in patterns:
            try:
                mesh.device_mesh(pattern)
                outcomes.append("accepted")
            except meshkit.MeshkitError as error:
                outcomes.append(f"{type(error).__name__}: {error}")
    return outcomes


def test_invalid_patterns_raise() -> None:
    patterns = ["", "(dp", "dp)", "dp ((sp))", "()", "dp dp", "dp tq", "(sp dp)", "dp-sp"]
    for outcomes in meshkit.spawn(request_patterns, 4, (patterns,), timeout=60):
        kinds = [text.partition(":")[0] for text in outcomes]
        assert kinds == ["SpecError"] * 6 + ["UnknownAxisError"] + ["SpecError"] * 2
        assert outcomes[7] == (
            "SpecError: mesh.device_mesh('(sp dp)'): the mesh has no group over sp dp.\n"
            "  It has groups over (dp), (sp); a getter never creates one.\n"
            "  Fix: build_mesh(..., groups=['sp dp'])."
        )


def swap_groups() -> str:
    """Pass groups of the wrong axis to the function that makes a DeviceMesh."""
    from meshkit.live.device_mesh import device_mesh

    swap = {("dp",): ("sp",), ("sp",): ("dp",)}
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        try:
            device_mesh(mesh._groups, lambda *a: mesh.group(*swap[a]), "cpu", "dp sp")
        except meshkit.SpecError as error:
            return str(error)
    return "accepted"


def test_a_group_of_another_axis_raises_before_torch_gets_it() -> None:
    for rank, outcome in enumerate(meshkit.spawn(swap_groups, 4, timeout=60)):
        dp, sp = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
        assert outcome == (
            "the group over dp does not hold the ranks of the layout.\n"
            f"  The group holds {sp}; the layout has {dp}.\n"
            "  Fix: use the groups of this mesh only."
        )


def run_fsdp_and_dtensor() -> list[float]:
    """Run FSDP2 over (dp sp) and a DTensor over dp, each on a DeviceMesh of the mesh."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    with meshkit.build_mesh(dp=2, sp=2, tp=1) as mesh:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        whole = torch.nn.Linear(8, 4)
        whole.load_state_dict(model.state_dict())
        fully_shard(model, mesh=mesh.device_mesh("(dp sp)"))
        inputs = torch.arange(32.0).reshape(4, 8) / 32
        model(inputs[mesh.rank : mesh.rank + 1]).sum().backward()
        (whole(inputs).sum() / 4).backward()
        grad = model.weight.grad.full_tensor()
        spread = distribute_tensor(inputs, mesh.device_mesh("dp"), [Shard(0)])
        assert whole.weight.grad is not None
        return [
            float((grad - whole.weight.grad).abs().max()),
            float((spread.full_tensor() - inputs).abs().max()),
            float(spread.to_local().shape[0]),
        ]


def test_fsdp2_and_dtensor_run_on_them() -> None:
    for gradient, tensor, rows in meshkit.spawn(run_fsdp_and_dtensor, 4, timeout=60):
        assert gradient < 1e-6
        assert tensor == 0
        assert rows == 2
