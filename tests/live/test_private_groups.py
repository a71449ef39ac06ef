"""Groups of its own for a second model in one process, and the twin of a mesh over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

import meshkit
from tests.live.faults import error_of
from tests.pool import Pool, start_pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with start_pool(2) as ranks:
        yield ranks


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


def compare_meshes() -> Any:
    with (
        meshkit.build_mesh(dp=1, tp=2) as mesh,
        mesh.view(share=False) as other,
        meshkit.build_mesh(dp=1, tp=2, share=False) as third,
        third.view(a=2) as view,
    ):
        roots = [m.device_mesh() for m in (mesh, other, third)]
        tensors = [distribute_tensor(torch.ones(4), root["tp"], [Shard(0)]) for root in roots]
        counts = []
        for tensor, root in zip(tensors, roots, strict=True):
            before = [r["tp"].get_group()._get_sequence_number_for_group() for r in roots]
            assert tensor.full_tensor().tolist() == [1.0] * 4
            after = [r["tp"].get_group()._get_sequence_number_for_group() for r in roots]
            counts.append([b - a for a, b in zip(before, after, strict=True)])
            assert root["tp"].mesh.tolist() == [0, 1]
        groups = {id(m.group("tp")) for m in (mesh, other, third)}
        whole = {id(m.group()) for m in (mesh, other, third)}
        return {
            "roots": len({*roots}),
            "slices": len({root["tp"] for root in roots}),
            "flat": len({root._flatten("all") for root in roots}),
            "groups": len(groups),
            "whole": len(whole),
            "view": view.group("a") is third.group("tp"),
            "counts": counts,
            "refused": error_of(lambda: mesh.view(share=None)),  # type: ignore[arg-type]
        }


def test_caches_and_groups_of_private_meshes_are_told_apart(pool: Pool) -> None:
    for found in pool.run(compare_meshes):
        refused = found.pop("refused")
        assert refused[0] == "SpecError"
        counts = found.pop("counts")
        for index, row in enumerate(counts):  # each collective ran on the group of its own mesh
            assert row[index] > 0
            assert sum(row) == row[index]
        assert found == {
            **dict.fromkeys(("roots", "slices", "flat", "groups"), 3),
            "whole": 3,
            "view": True,
        }


def make_twin() -> Any:
    with (
        meshkit.build_mesh(dp=1, tp=2, groups=["dp tp"]) as mesh,
        mesh.view(backend="gloo") as twin,
    ):
        total = torch.ones(1)
        dist.all_reduce(total, group=twin.group("tp"))
        same = twin.layout == mesh.layout and twin.group("dp", "tp").size() == 2
        return total.item(), same, twin.device.type, dist.get_backend(twin.group("tp"))


def test_a_twin_over_gloo_has_the_same_axes_for_tensors_on_the_cpu(pool: Pool) -> None:
    assert pool.run(make_twin) == [(2.0, True, "cpu", "gloo")] * 2
