"""Groups for single directed edges of an axis, so that no send along one waits for another.

A backend such as NCCL runs the messages of a group in one order. In a pipeline a rank that sends to
the next stage and a rank that sends back can wait for each other. With a group for each direction
of each pair of neighbors they cannot::

    pp=3    0 -> 1    1 -> 2        rank 1 is in four groups, one for each arrow
            0 <- 1    1 <- 2

Each group has two ranks, of which the lower one is rank 0. Its backend, options and timeout are
those of the axis. ``backend={axis: "nccl-lazy"}`` gives each pair of ranks a communicator, without
these groups. All ranks compare the request before a group is created.
"""

from __future__ import annotations

import numpy as np
import torch.distributed as dist

from ..call import Call
from ..errors import MeshkitError, SpecError
from ..launch.torch_groups import backend_of, timeout_of_options
from ..layout.axes import check_axes_exist, parse_axes
from ..layout.group_plan import edge_rounds
from .backends import GroupBackend, backends_by_key
from .device_mesh_groups import create_agreed
from .live_mesh import LiveMesh
from .open_mesh import MeshProposal
from .registry import Edge, MeshGroups
from .requests import FoundGroups, GroupRequest


def edges(  # noqa: D417  # self
    self: LiveMesh, axis: str, *, wrap: bool = False
) -> dict[tuple[int, int], dist.ProcessGroup]:
    """Return this rank's groups for single directed edges between neighbors of an axis.

    For pipelines whose sends and receives must not wait for one another; see
    :mod:`meshkit.groups.edges`. The first call for an axis creates the groups: collective over
    the world, also for ranks outside the mesh. Later calls are local. ``close`` closes the
    groups.

    Args:
        axis: one axis.
        wrap: also the edges between the last coordinate and the first, for several stages a
            rank.

    Returns:
        ``(source, target)`` to group of two ranks, both as coordinates along the axis, for the
        edges of this rank; empty along an axis of size 1, and outside the mesh.

    Cost: 8 store operations and four or six rounds of groups for each axis, once.

    Example:
        >>> sorted(mesh.edges("sp"))
        [(0, 1), (1, 0)]
    """
    mesh, proposal = self._groups, self._proposal
    call = Call("mesh.edges", (axis,), {"wrap": wrap or None})
    layout = mesh.plan.layout
    try:
        mesh.check_open()
        if not isinstance(axis, str) or len(parse_axes(axis)) != 1:
            raise SpecError(f"the axis is {axis!r}.", fix="the name of one axis, such as 'pp'.")
        if not isinstance(wrap, bool):
            fix = "wrap=True for the edges of a ring, or leave it out."
            raise SpecError(f"wrap is {wrap!r}.", fix=fix)
        check_axes_exist((axis,), layout.axes)
        rounds = edge_rounds(layout.sizes.get(axis, 1), wrap=wrap)
        requests = _list_requests(mesh, proposal, axis, rounds)
        with proposal.job.counts.lock:
            groups = _provide(mesh, proposal, call, axis, requests)
    except MeshkitError as error:
        error.quote(call)
        raise
    if mesh.rank not in layout:
        return {}
    own = layout.coordinate(mesh.rank).get(axis, 0)
    known = mesh.edges.setdefault(axis, {})
    for request, of_round in zip(requests, rounds, strict=True):
        for edge in of_round:
            if own in edge and (group := groups[request.axes]) is not None:
                known[edge] = group
    return {edge: known[edge] for of_round in rounds for edge in of_round if own in edge}


def _list_requests(
    mesh: MeshGroups, proposal: MeshProposal, axis: str, rounds: list[list[Edge]]
) -> list[GroupRequest]:
    """Return a request for the groups of each round, with backend and timeout of the axis."""
    layout, options = mesh.plan.layout, proposal.options
    own = backends_by_key(mesh.plan, options.backends).get((axis,), GroupBackend(None))
    limit = options.timeouts.by_key.get((axis,)) or timeout_of_options(own.options)
    limit, backend = limit or options.timeouts.default, options.backend or backend_of()
    rows = layout.groups(axis) if rounds else np.zeros((0, 0), dtype=np.int64)
    requests = []
    for of_round in rounds:
        members = np.sort(np.concatenate([rows[:, edge] for edge in of_round]), axis=1)
        first = of_round[0]  # no other round has it
        steps = (*layout.strides(axis), (0, 1 + first[0]), (0, 1 + first[1]))
        name = f"{axis} edges {first[0]}>{first[1]}"
        requests.append(GroupRequest.of((name,), name, members, limit, steps, own, backend))
    return requests


def _provide(
    mesh: MeshGroups, proposal: MeshProposal, call: Call, axis: str, requests: list[GroupRequest]
) -> dict[tuple[str, ...], dist.ProcessGroup | None]:
    """Return this rank's group of each request. Collective over the world if some are missing."""
    found, registry = FoundGroups(mesh.plan, requests, {}, []), mesh.registry
    for request in requests:
        origin, group = registry.find(request.key)
        if origin == "created":
            found.found[request.axes] = group
        else:
            found.missing.append(request)
    used = registry.open_views[mesh.view_id].groups
    shared = [r for r in requests if r.axes in found.found and r.key not in used]
    registry.extend(mesh.view_id, {}, {request.key: (request.axes,) for request in shared})
    if not found.missing:
        return found.found
    rounds = ", ".join(request.axes[0] for request in requests)
    facts = {"edges": rounds, "members": f"{mesh.plan.layout.strides(axis)}"}
    new = create_agreed(found, mesh, proposal.job, proposal.options, call, facts)
    return {**found.found, **{request.axes: new[request.key] for request in found.missing}}
