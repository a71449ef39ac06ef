"""Groups of several ranks are split from a bound default group: one call a step, on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.groups import groups as create
from tests.membership import gather_ranks
from tests.newer_torch import needs_order


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


ORDER = [7, 6, 5, 4, 3, 2, 1, 0]
OVER_DP_AND_SP = [[[0, 2, 4, 6], [1, 3, 5, 7]], [[0, 1], [2, 3], [4, 5], [6, 7]]]
REVERSED = [[[7, 5, 3, 1], [6, 4, 2, 0]], [[7, 6], [5, 4], [3, 2], [1, 0]]]
OUTSIDE = [0, 3, 4, 7]


@dataclass(frozen=True)
class World:
    """A mesh, and the splits of its groups, which are the same on every rank."""

    sizes: dict[str, int]
    splits: list[list[list[int]]]
    ranks: list[int] | None = None
    keeps: bool = False  # whether a split keeps the order of the ranks, as in torch 2.15


WORLDS = {
    "one split a step": World({"dp": 4, "sp": 2}, OVER_DP_AND_SP),
    "axes of size 1 need no communicator": World({"dp": 8, "tp": 1}, []),
    "ranks outside the mesh take part": World(
        {"dp": 2, "sp": 2},
        [
            [[1, 2, 5, 6], OUTSIDE],
            [[1, 5], [2, 6], OUTSIDE],
            [[1, 2], [5, 6], OUTSIDE],
        ],
        [1, 2, 5, 6],
    ),
    "groups that a split would reorder are not split": World({"dp": 4, "sp": 2}, [], ORDER),
    "a split that keeps orders serves every group": World(
        {"dp": 4, "sp": 2}, [[ORDER], *REVERSED], ORDER, keeps=True
    ),
}


def build_by_splitting() -> None:
    """Build each mesh by splitting; check the splits and the members of the groups."""
    meshkit.init(timeout=60)
    for name, world in WORLDS.items():
        played = Splitting()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(create, "dist", played)
            patch.setattr(create, "SPLITS_KEEP_ORDER", world.keeps)
            patch.setattr(create, "bound_device", lambda: torch.device("cuda:0"), raising=True)
            patch.setattr(create, "takes_part_in_split", lambda backend: True, raising=True)
            patch.setattr(create, "can_split", lambda backend: True, raising=True)
            with meshkit.build_mesh(world.sizes, ranks=world.ranks) as mesh:
                for axis in world.sizes if mesh.inside else ():
                    assert gather_ranks(mesh.group(axis)) == mesh.peers(axis).tolist()
        assert played.calls == world.splits, (name, played.calls)
        assert {*played.timeouts} <= {timedelta(seconds=60)}
        assert all(text.startswith("meshkit ") for text in played.descriptions)


@needs_order
def test_groups_are_split_from_the_default_group() -> None:
    meshkit.spawn(build_by_splitting, 8, timeout=120)
