"""Groups of its own for a second model in one process, and the twin of a mesh over gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

import meshkit
from tests.faults import error_of
from tests.pool import Pool, start_pool

RANKS = 2  # of the pool


def run_in_other_orders(first: dist.ProcessGroup, second: dist.ProcessGroup) -> Any:
    """Run a collective of each of two models, which rank 1 starts in the other order.

    Rank 0 waits for the sum of the first model, then sends a tensor of the second one. Rank 1 has
    begun to receive before it takes part in the sum.
    """
    total, sent = torch.ones(4), torch.full((4,), float(dist.get_rank() + 1))
    errors: list[str] = []
    try:
        if dist.get_rank() == 0:
            dist.all_reduce(total, group=first)
            dist.broadcast(sent, src=0, group=second)
        else:
            work = dist.broadcast(sent, src=0, group=second, async_op=True)
            dist.all_reduce(total, group=first)
            work.wait()
    except RuntimeError as error:
        errors.append(str(error))
    return total.tolist() == [2.0] * 4 and sent.tolist() == [1.0] * 4, errors


def run_two_models(share: bool) -> Any:
    with (
        meshkit.build_mesh(dp=1, tp=2, timeout=2) as mesh,
        mesh.view(share=share) as other,
    ):
        assert (mesh.group("tp") is other.group("tp")) == share
        return run_in_other_orders(mesh.group("tp"), other.group("tp"))


def test_two_models_with_groups_of_their_own_do_not_deadlock(pool: Pool) -> None:
    assert pool.run(run_two_models, False) == [(True, []), (True, [])]


def test_two_models_over_shared_groups_deadlock() -> None:
    with start_pool(2) as ranks:
        results = ranks.run(run_two_models, True)
    assert any(errors for _, errors in results)
    assert not all(right for right, _ in results)


def tell_private_meshes_apart() -> None:
    """Compare the caches and the groups of meshes, and the group that each collective takes."""
    with (
        meshkit.build_mesh(dp=1, tp=2) as mesh,
        mesh.view(share=False) as other,
        meshkit.build_mesh(dp=1, tp=2, share=False) as third,
        third.view(a=2) as view,
    ):
        meshes = mesh, other, third
        roots = [m.device_mesh() for m in meshes]

        def counts() -> list[int]:
            return [r["tp"].get_group()._get_sequence_number_for_group() for r in roots]

        for index, root in enumerate(roots):
            tensor, before = distribute_tensor(torch.ones(4), root["tp"], [Shard(0)]), counts()
            assert tensor.full_tensor().tolist() == [1.0] * 4
            changed = [after != old for old, after in zip(before, counts(), strict=True)]
            assert changed == [position == index for position in range(3)]
            assert root["tp"].mesh.tolist() == [0, 1]
        assert len({*roots}) == len({root["tp"] for root in roots}) == 3
        assert len({root._flatten("all") for root in roots}) == 3
        assert len({id(m.group("tp")) for m in meshes}) == len({id(m.group()) for m in meshes}) == 3
        assert view.group("a") is third.group("tp")
        none: Any = None
        assert (error_of(lambda: mesh.view(share=none)) or "")[0] == "SpecError"


def make_a_twin_over_gloo() -> None:
    """Use the same axes for tensors on the CPU."""
    with (
        meshkit.build_mesh(dp=1, tp=2, groups=["dp tp"]) as mesh,
        mesh.view(backend="gloo") as twin,
    ):
        total = torch.ones(1)
        dist.all_reduce(total, group=twin.group("tp"))
        assert total == 2
        assert twin.layout == mesh.layout
        assert twin.group("dp", "tp").size() == 2
        assert (twin.device.type, dist.get_backend(twin.group("tp"))) == ("cpu", "gloo")


@pytest.mark.parametrize("check", [tell_private_meshes_apart, make_a_twin_over_gloo])
def test_views_with_groups_of_their_own(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)
