"""What torch keeps of process groups and tells by no public name: here and only here.

(The store of a group, which torch tells from 2.13 on, is a matter of ``default_group.py``.)
How long a collective may take (it is set by a public name from torch 2.13 on), how many
collectives this rank has begun on the group, how many groups torch has named, and what DTensor
remembers of groups that are gone.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout

# torch 2.13; below that, gloo keeps for its collectives the time under which it connected.
CAN_SET_TIMEOUT = hasattr(dist.ProcessGroup, "set_timeout")


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """How long a collective of the group may take; None where torch does not tell. Local.

    No public name tells it, and without it the groups of a mesh would forget the job's own timeout.
    """
    try:
        found = group._get_backend(_device(group)).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, timedelta) else None


def set_timeout(group: dist.ProcessGroup, timeout: timedelta | None) -> None:
    """Let later collectives of the group take so long. Local; only where ``RETIMES``.

    Args:
        group: made by torch.
        timeout: None is the backend's default.
    """
    group.set_timeout(timeout or default_timeout(str(dist.get_backend(group))))


def default_timeout(backend: str) -> timedelta:
    """What torch gives a group for which nothing is said: nccl 10 min, all others 30."""
    nccl = default_pg_nccl_timeout if backend == "nccl" else None
    return nccl or default_pg_timeout


def connects_at_creation(backend: str) -> bool:
    """Whether making a group waits for its peers, as gloo does: it connects every pair."""
    return "gloo" in backend


def has_connect_timeout(backend: str) -> bool:
    """Whether it can do so under another time than that of its collectives."""
    return connects_at_creation(backend) and CAN_SET_TIMEOUT


def collective_count(group: dist.ProcessGroup) -> int | None:
    """How many collectives this rank has begun on the group; None where torch does not tell. Local.

    The one that waits counts too. A send or a receive counts as one, so ranks of a pipeline differ.
    """
    try:
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None


def advance_group_counter(groups: int) -> bool:
    """Let torch go on as if it had named so many groups of others. Local, whatever their number.

    Torch names groups by their number, so every rank is told of every group: 0.1 ms for each to
    which it does not belong, and a large mesh has a thousand. All that torch does is to count them.

    Returns:
        False, and nothing is done, where torch does more than that, or counts by another name.
    """
    book, world = getattr(dist.distributed_c10d, "_world", None), dist.group.WORLD
    more = hasattr(world, "new_group") or os.environ.get("TORCH_DIST_INIT_BARRIER") == "1"
    count = getattr(book, "group_count", None)
    if more or count != dist.get_pg_count():
        return False
    book.group_count = count + groups  # type: ignore[union-attr]
    return True


def clear_dtensor_cache() -> None:
    """Let DTensor forget results that hold groups which are gone. Local; nothing where not loaded.

    It keeps them by equal DeviceMeshes, to which their groups do not belong: a later mesh over the
    same ranks would be given the groups of an earlier one, and fail.
    """
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import debug

        with suppress(AttributeError):
            debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def _device(group: dist.ProcessGroup) -> torch.device:
    kinds = [device.type for device in group._device_types]
    return torch.device("cpu" if "cpu" in kinds else kinds[0])
