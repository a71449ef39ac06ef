"""Groups of gradients, samples of ranks along ep, and axes of unknown role, on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import meshkit
from tests.data.test_micro_batches import train_one_step
from tests.membership import members_of
from tests.pool import Pool
from tests.resources import live_groups

RANKS = 8  # of the pool
STEPS, MICRO = 2, 3
GLOBAL = STEPS * MICRO * 4  # dp x ep


def gradient_members(mesh: meshkit.Mesh) -> list[list[int]]:
    """Return the members of both gradient groups. Collective."""
    return [members_of(mesh.gradient_group(experts=experts)) for experts in (False, True)]


def read_with_experts() -> None:
    """Check the groups and the samples on a mesh with ep and sp, and on a view of it.

    The samples of a rank follow from an array (steps, micro steps, dp, ep, items).
    """
    with meshkit.build_mesh(dp=2, ep=2, sp=2) as mesh, mesh.view(dp=2, ep=2, tp=2) as view:
        rank, count = mesh.rank, live_groups()
        assert mesh.gradient_group() is mesh.group("dp", "ep", "sp") is mesh.group()
        assert mesh.gradient_group(experts=True) is mesh.group("dp", "sp")
        assert view.gradient_group(experts=True) is view.group("dp")
        assert live_groups() == count  # a getter creates nothing
        same_ep = [other for other in range(8) if other // 2 % 2 == rank // 2 % 2]
        assert gradient_members(mesh) == [[*range(8)], same_ep]
        same_tp = [other for other in range(8) if other % 2 == rank % 2]
        assert gradient_members(view) == [same_tp, [*range(rank % 4, 8, 4)]]

        order = np.arange(2 * GLOBAL).reshape(2, STEPS, 2, 2, MICRO)
        dp, ep, _ = np.unravel_index(rank, (2, 2, 2))
        plan = mesh.batch(accumulation_steps=STEPS, micro_batch=MICRO)
        assert (plan.global_batch, plan.dp, plan.axes) == (GLOBAL, 4, ("dp", "ep"))
        assert plan.samples(1).tolist() == order[1, :, dp, ep].tolist()
        loader = DataLoader(range(2 * GLOBAL), batch_sampler=mesh.sampler(2 * GLOBAL, plan))
        assert torch.cat([*loader]).tolist() == order[:, :, dp, ep].ravel().tolist()
        mesh.check_batch(plan.samples(0).tolist())
        shared = mesh.batch(accumulation_steps=STEPS, micro_batch=MICRO, data="dp")
        assert shared.global_batch == GLOBAL // 2
        by_dp = np.arange(GLOBAL // 2).reshape(STEPS, 2, MICRO)
        assert shared.samples(0).tolist() == by_dp[:, dp].tolist()
        weight = float(mesh.token_weights([rank + 1]))
        assert weight == pytest.approx(8 * (rank + 1) / 36)  # tokens of all 8 ranks
        for m in (mesh, view):  # DDP averages over the global batch
            batch = m.batch(global_batch=8, micro_batch=1)
            assert train_one_step(m, batch, average_with_ddp(m), 8)[0] < 1e-14


def average_with_ddp(mesh: meshkit.Mesh) -> Callable[[Any], Any]:
    """Return the wrapper of a model that the README shows."""
    return lambda model: DistributedDataParallel(model, process_group=mesh.gradient_group())


def refuse_to_guess() -> None:
    """Meet errors on a mesh with an axis of unknown role, and type their fixes."""
    plain = meshkit.BatchPlan.solve(dp=4, global_batch=16, micro_batch=2)
    with meshkit.build_mesh({"dp": 2, "rows": 2, "tp": 2}, order="dp rows tp") as mesh:

        def fix_of(ask: Callable[[], object]) -> str:
            with pytest.raises(meshkit.SpecError) as caught:
                ask()
            return caught.value.fix_text

        fix = fix_of(lambda: mesh.batch(global_batch=16, micro_batch=2))
        assert fix == "data='dp rows', or data='dp'."
        assert fix_of(lambda: mesh.check_batch([mesh.rank])) == fix
        assert "data='dp rows'" in fix_of(lambda: mesh.sampler(32, plain))
        assert "'dp', 'rows'" in fix_of(lambda: mesh.token_weights([1]))
        data: dict[str, Any] = eval(f"dict({fix.partition(', or ')[0]})")
        typed, index = mesh.batch(global_batch=16, micro_batch=2, **data), mesh.rank // 2
        assert typed.samples(0).tolist() == [
            [8 * a + 2 * index + b for b in (0, 1)] for a in (0, 1)
        ]
        mesh.check_batch([index], **data)
        assert next(iter(mesh.sampler(32, typed))) == typed.samples(0).tolist()[0]
        group = eval(fix_of(mesh.gradient_group).partition(", or ")[0], {"mesh": mesh})
        assert members_of(group) == [mesh.rank % 4, mesh.rank % 4 + 4]


def read_with_other_names() -> None:
    """Check samples and groups on meshes with the axis names of other libraries."""
    for order, dp in ("data model", 4), ("dp_replicate dp_shard", 8), ("fsdp seq tensor", 2):
        names = order.split()
        sizes = dict(zip(names, (4, 2) if len(names) == 2 else (2, 2, 2), strict=True))
        with meshkit.build_mesh(sizes, order=order) as mesh:
            plan, index = mesh.batch(global_batch=16, micro_batch=2), mesh.rank * dp // 8
            assert (plan.dp, plan.data_index) == (dp, index)
            plain = meshkit.BatchPlan.solve(dp=dp, global_batch=16, micro_batch=2)
            assert next(iter(mesh.sampler(16, plain))) == [2 * index, 2 * index + 1]
            step = 1 if dp == 8 else 2
            assert gradient_members(mesh)[0] == [*range(mesh.rank % step, 8, step)]


def read_ep_inside_dp_both_ways() -> None:
    with pytest.raises(meshkit.SpecError) as caught:
        meshkit.build_mesh(dp=8, ep=4)
    view = "leave out ep, and mesh.view(dp=2, ep=4) for the experts"
    assert caught.value.fix_text.split(", or ") == ["dp=2", view, "start 32 ranks."]
    with meshkit.build_mesh(dp=2, ep=4) as mesh:
        assert mesh.layout.sizes == {"dp": 2, "ep": 4}
    with meshkit.build_mesh(dp=8) as dense, dense.view(dp=2, ep=4) as view:
        assert view.gradient_group() is dense.gradient_group()
        assert gradient_members(view) == [[*range(8)], [*range(dense.rank % 4, 8, 4)]]


@pytest.mark.parametrize(
    "check",
    [read_with_experts, refuse_to_guess, read_with_other_names, read_ep_inside_dp_both_ways],
)
def test_gradients_and_samples_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)
