"""Run barriers, guards and checks over the groups of a mesh."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from functools import partial

import torch

from ...core.grid.axis_names import Names
from ...core.report.verification import Verification
from ...launch.agreement.proposal import Participants
from ...launch.current_job import Job
from ...launch.store.deadline import Time, parse_timeout
from ...launch.torch_internals import timeout_of
from ..group_registry import MeshGroups
from ..setup.proposal import describe_coordinate
from .barrier import barrier
from .guard import guard_collectives
from .roll_call import GuardContext, GuardState
from .verify import verify_groups


def wait_at_barrier(
    mesh: MeshGroups, job: Job, axes: tuple[Names, ...], timeout: Time | None
) -> None:
    """Wait for the ranks of this rank's group. See :meth:`meshkit.Mesh.barrier`."""
    group, device = mesh.collective_group(axes), job.world.device
    limit = parse_timeout("timeout", timeout) or timeout_of(group)
    device_ids = [device.index] if device is not None and device.index is not None else None
    participants = _participants(mesh, job, axes)
    barrier(participants, group, limit, device_ids, partial(describe_coordinate, mesh.plan.layout))


def guard_mesh(
    mesh: MeshGroups, job: Job, state: GuardState, timeout: Time | None
) -> AbstractContextManager[None]:
    """Return a guard of the mesh's collectives. See :meth:`meshkit.Mesh.guard`."""
    mesh.check_can_communicate()
    limit = parse_timeout("timeout", timeout)
    layout, groups = mesh.plan.layout, mesh.groups.by_key
    return guard_collectives(GuardContext(layout, job, groups, mesh.round_id, state), limit)


def verify_mesh(
    mesh: MeshGroups, job: Job, state: GuardState, timeout: Time | None, device: torch.device
) -> Verification:
    """Check and time each group of the mesh. See :meth:`meshkit.Mesh.verify`."""
    with guard_mesh(mesh, job, state, timeout):
        return verify_groups(mesh.plan.layout, mesh.rank, mesh.groups.by_key, device)


def _participants(mesh: MeshGroups, job: Job, axes: tuple[Names, ...]) -> Participants | None:
    """Return the ranks of a group at the store; None if there is no store."""
    ranks = sorted(mesh.plan.layout.peers(mesh.rank, *axes).tolist())
    digest = hashlib.sha256(str(ranks).encode()).hexdigest()  # one prefix for equal groups
    return job.participants(ranks, f"mesh/{mesh.round_id}/barrier/{digest}/")
