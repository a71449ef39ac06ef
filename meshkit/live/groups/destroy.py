"""Destroy process groups, or abort what runs on them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import torch.distributed as dist

from ...launch.torch_internals import clear_dtensor_cache


def is_destroyed_collectively(groups: Iterable[dist.ProcessGroup]) -> bool:
    """Return whether all ranks of these groups must destroy them together, as with NCCL."""
    return any("nccl" in group.name() for group in groups)


def abort_groups(groups: Iterable[dist.ProcessGroup]) -> None:
    """Abort the collectives of groups, so that every waiting thread gets an error. Local.

    Nothing happens if the backend cannot abort, as gloo.
    """
    for group in dict.fromkeys(groups):
        with suppress(RuntimeError):
            group.abort()


def destroy_groups(groups: Iterable[dist.ProcessGroup]) -> None:
    """Destroy groups and release their descriptors and threads. Local on gloo.

    Groups that are destroyed already, with the default group or by the user, are skipped.
    """
    destroyed = [*groups]
    for group in destroyed:
        # ValueError: "Invalid process group specified" for a group that is destroyed already
        with suppress(ValueError, AssertionError):
            dist.destroy_process_group(group)
    if destroyed:
        clear_dtensor_cache()
