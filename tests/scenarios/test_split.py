"""Groups are split from a bound default group: one call a step, with every rank."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.live import groups as create
from tests.live.membership import gather_ranks
from tests.live.newer_torch import needs_order


class Splitting:
    """A stand-in for torch.distributed with an NCCL default group that is bound to a device.

    Each split is recorded, and done by calls of new_group, one for each part.
    """

    def __init__(self) -> None:
        self.calls: list[list[list[int]]] = []
        self.descriptions: list[str] = []
        self.timeouts: list[timedelta | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def get_backend(self, group: Any = None) -> str:
        return "nccl"

    def split_group(
        self,
        *,
        split_ranks: list[list[int]],
        timeout: timedelta | None,
        group_desc: str,
        pg_options: object,
    ) -> dist.ProcessGroup | None:
        assert pg_options is None
        self.calls.append(split_ranks)
        self.descriptions.append(group_desc)
        self.timeouts.append(timeout)
        order = {"sort_ranks": False} if create.SPLITS_KEEP_ORDER else {}
        groups = [dist.new_group(ranks, timeout=timeout, **order) for ranks in split_ranks]
        dist.barrier()  # gloo's groups, unlike NCCL's, must not be closed while a peer connects
        is_member = [dist.get_rank() in ranks for ranks in split_ranks]
        return groups[is_member.index(True)] if True in is_member else None


def build_by_splitting(sizes: dict[str, int], options: dict[str, Any], keeps: bool) -> Any:
    """Build a mesh by splitting; return the splits and the members of the groups."""
    meshkit.init(timeout=60)
    played = Splitting()
    patch = pytest.MonkeyPatch()
    patch.setattr(create, "dist", played)
    patch.setattr(create, "SPLITS_KEEP_ORDER", keeps)
    patch.setattr(create, "bound_device", lambda: torch.device("cuda:0"), raising=True)
    patch.setattr(create, "takes_part_in_split", lambda backend: True, raising=True)
    patch.setattr(create, "can_split", lambda backend: True, raising=True)
    with meshkit.build_mesh(sizes, **options) as mesh:
        inside = mesh.rank in mesh.layout
        sums = {axis: gather_ranks(mesh.group(axis)) for axis in sizes} if inside else {}
        ranks = {axis: mesh.peers(axis).tolist() for axis in sizes} if inside else {}
    return played.calls, played.descriptions, played.timeouts, sums, ranks


def run(sizes: dict[str, int], *, keeps: bool = False, **options: Any) -> list[Any]:
    outcomes = meshkit.spawn(build_by_splitting, 8, (sizes, options, keeps), timeout=120)
    for calls, descriptions, timeouts, sums, ranks in outcomes:
        assert calls == outcomes[0][0]  # the same on every rank
        assert descriptions == outcomes[0][1]
        assert all(sorted(r for part in call for r in part) == list(range(8)) for call in calls)
        assert set(timeouts) <= {timedelta(seconds=60)}
        assert sums == ranks
    return outcomes


def test_one_split_a_step() -> None:
    outcomes = run({"dp": 4, "sp": 2})
    axes = [[[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 1], [2, 3], [4, 5], [6, 7]]]
    assert outcomes[0][0] == [*axes, [[rank] for rank in range(8)]]  # and the absent axes
    assert outcomes[0][1] == ["meshkit dp", "meshkit sp", "meshkit rank"]


def test_axes_of_size_1_are_split_too() -> None:
    """All ranks must take part in a split, so a group of one rank is split as well."""
    outcomes = run({"dp": 8, "tp": 1})
    assert [[rank] for rank in range(8)] in outcomes[0][0]


def test_ranks_outside_the_mesh_take_part_in_each_split() -> None:
    outcomes = run({"dp": 2, "sp": 2}, ranks=[1, 2, 5, 6])
    assert all(call[-1] == [0, 3, 4, 7] for call in outcomes[0][0])


@needs_order
def test_groups_that_a_split_would_reorder_are_not_split() -> None:
    outcomes = run({"dp": 4, "sp": 2}, ranks=[7, 6, 5, 4, 3, 2, 1, 0])
    assert outcomes[0][0] == [[[rank] for rank in range(8)][::-1]]  # only groups of one


@needs_order
def test_a_split_that_keeps_orders_serves_every_group() -> None:
    """So does torch 2.15, whose nccl2 is then asked for nothing but whole splits."""
    outcomes = run({"dp": 4, "sp": 2}, keeps=True, ranks=[7, 6, 5, 4, 3, 2, 1, 0])
    ranks = [7, 6, 5, 4, 3, 2, 1, 0]
    axes = [[[7, 5, 3, 1], [6, 4, 2, 0]], [[7, 6], [5, 4], [3, 2], [1, 0]]]
    assert outcomes[0][0] == [[ranks], *axes, [[rank] for rank in ranks]]
