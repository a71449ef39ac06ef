"""Every group of a mesh, proved by one collective and timed by some more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from ..core.call import Call
from ..core.errors import MeshkitError, told
from ..core.layout import Layout
from ..core.plan import Axes
from ..core.runs import format_ranks
from ..core.verification import Seconds, Verification, verification

REPEATS = 5
WRONG = -1.0  # in place of seconds, where a group holds other ranks than the mesh says


def verified(
    call: Call,
    layout: Layout,
    rank: int,
    groups: Mapping[Axes, dist.ProcessGroup],
    device: torch.device,
) -> Verification:
    """Prove and time each group. Collective over the layout; six collectives a group, and one.

    Args:
        call: the call to quote.
        layout: the ranks.
        rank: this process.
        groups: the key of a plan to this rank's group; that over all axes among them.
        device: where tensors of a collective must lie.

    Raises:
        MeshkitError: on every rank, where a group holds other ranks than the mesh says.
    """
    keys = [key for key in groups if key]
    proofs = [_proved(layout.peers(rank, *key).tolist(), groups[key], device) for key in keys]
    timed = [_seconds(groups[key], device) for key in keys]  # also where a proof has failed
    took = [seconds if proof else WRONG for seconds, proof in zip(timed, proofs, strict=True)]
    whole = tuple(axis for axis in layout.axes if layout.size(axis) > 1)
    seconds = _shared(took, groups[whole], device) if keys else np.zeros((1, 0))
    _check(call, layout, keys, seconds)
    return verification(layout, keys, seconds)


def _proved(members: list[int], group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether a gather over the group meets exactly these ranks, in this order."""
    return [int(one) for one in _gathered(torch.tensor(dist.get_rank()), group, device)] == members


def _seconds(group: dist.ProcessGroup, device: torch.device) -> float:
    """Of one collective of a few bytes, the median of some."""
    return median(_timed(group, device) for _ in range(REPEATS))


def _timed(group: dist.ProcessGroup, device: torch.device) -> float:
    began = time.perf_counter()
    _gathered(torch.zeros(()), group, device)
    return time.perf_counter() - began


def _gathered(
    value: torch.Tensor, group: dist.ProcessGroup, device: torch.device
) -> list[torch.Tensor]:
    """The value of every member, in the order of the group, back on the host."""
    mine = value.to(device)
    found = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(found, mine, group=group)
    return [one.cpu() for one in found]


def _shared(took: list[float], whole: dist.ProcessGroup, device: torch.device) -> Seconds:
    """What every rank measured, (num_ranks, num_keys)."""
    rows = _gathered(torch.tensor(took, dtype=torch.float64), whole, device)
    return torch.stack(rows).numpy()


def _check(call: Call, layout: Layout, keys: list[Axes], seconds: Seconds) -> None:
    ranks = layout.grid.ravel()
    for key, column in zip(keys, seconds.T, strict=True):
        wrong = sorted(int(rank) for rank in ranks[column == WRONG])
        if wrong:
            text = told(
                f"{call}: the group over {' '.join(key)} is not the one the mesh says.",
                f"A gather over it met other ranks, or in another order, on ranks {format_ranks(wrong)}.",
                fix="close the mesh and build it again; report this with the version of torch.",
            )
            raise MeshkitError(text)
