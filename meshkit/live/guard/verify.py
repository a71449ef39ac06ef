"""Check every group of a mesh with one collective, and time some more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from ...core.arrays import Seconds
from ...core.errors import MeshkitError
from ...core.grid.group_plan import Axes
from ...core.grid.layout import Layout
from ...core.report.verification import Verification, summarize_timings
from ...core.text import format_ranks
from ..groups import all_gather

REPEATS = 5
WRONG = -1.0  # instead of seconds, if a group holds other ranks than the layout


def verify_groups(
    layout: Layout,
    rank: int,
    groups: Mapping[Axes, dist.ProcessGroup],
    device: torch.device,
) -> Verification:
    """Check and time each group. Collective over the layout.

    Cost: six collectives of a few bytes per group, and one over all ranks.
    """
    keys = [key for key in groups if key]
    matches = [_has_members(layout.peers(rank, *key).tolist(), groups[key], device) for key in keys]
    timed = [_median_seconds(groups[key], device) for key in keys]  # even if a check has failed
    own = [seconds if ok else WRONG for seconds, ok in zip(timed, matches, strict=True)]
    seconds = np.zeros((1, 0))
    if keys:
        whole = tuple(axis for axis in layout.axes if layout.size(axis) > 1)
        rows = all_gather(torch.tensor(own, dtype=torch.float64, device=device), groups[whole])
        seconds = torch.stack(rows).cpu().numpy()  # (num_ranks, num_keys)
    _check_members(layout, keys, seconds)
    return summarize_timings(layout, keys, seconds)


def _has_members(members: list[int], group: dist.ProcessGroup, device: torch.device) -> bool:
    """Return whether a gather over the group returns exactly these ranks, in this order."""
    ranks = all_gather(torch.tensor(dist.get_rank(), device=device), group)
    return [int(rank) for rank in ranks] == members


def _median_seconds(group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the median seconds of one collective of a few bytes."""
    return median(_time_gather(group, device) for _ in range(REPEATS))


def _time_gather(group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the seconds of one gather, the copy to the host included."""
    began = time.perf_counter()
    for tensor in all_gather(torch.zeros((), device=device), group):
        tensor.cpu()
    return time.perf_counter() - began


def _check_members(layout: Layout, keys: list[Axes], seconds: Seconds) -> None:
    """Raise if a group of any rank has other members than in the layout."""
    ranks = layout.grid.ravel()
    for key, column in zip(keys, seconds.T, strict=True):
        wrong = sorted(int(rank) for rank in ranks[column == WRONG])
        if wrong:
            raise MeshkitError(
                f"the group over {' '.join(key)} does not hold the ranks of the layout.",
                "A gather over it returned other ranks, or another order, on ranks "
                f"{format_ranks(wrong)}.",
                fix="close the mesh and build it again; report this with the version of torch.",
            )
