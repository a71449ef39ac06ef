"""Which groups a plan needs, with which options, and which of them exist already. Local.

Equal groups are one group: groups that the registry holds, and the default group, are used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from ..errors import SpecError
from ..launch.job import Job
from ..launch.times import Time, format_timeout, parse_timeout
from ..launch.torch_aborts import default_timeout
from ..launch.torch_groups import KEEPS_ORDER, backend_of, timeout_of_options
from ..launch.world import World
from ..layout.crossings import check_policies
from ..layout.group_plan import Axes, GroupPlan, parse_group
from ..layout.ranks import Strides
from ..layout.topology import Topology
from ..text import Ints
from .backends import GroupBackend, backends_by_key, parse_backends
from .registry import GroupKey, GroupRegistry

DESCRIPTION = "meshkit"  # begins the description of each group that a mesh creates


class GroupTimeouts(NamedTuple):
    """The timeout of every group."""

    default: timedelta | None  # of all groups without one of their own; None is the backend's
    by_key: Mapping[Axes, timedelta] = {}  # key of the group plan to the timeout of its groups

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        timeout: Time | Mapping[str, Time] | None,
        default: timedelta | None = None,
    ) -> GroupTimeouts:
        """Return the timeouts that a caller requests."""
        if not isinstance(timeout, Mapping):
            return cls(parse_timeout("timeout", timeout) or default)
        by_key: dict[Axes, timedelta] = {}
        for names, value in timeout.items():
            axes = parse_group(plan, names)
            limit = parse_timeout("timeout", value)
            if limit is not None:  # several sets of axes with one group: the longest counts
                key = plan.group_key(axes)
                by_key[key] = max(limit, by_key.get(key, limit))
        return cls(default, by_key)

    def by_members(self, plan: GroupPlan) -> dict[Strides, timedelta]:
        """Return the timeouts of single groups by the strides of their members."""
        return {plan.layout.strides(key): limit for key, limit in self.by_key.items()}

    def inherit(self, plan: GroupPlan, view: GroupPlan, own: GroupTimeouts) -> GroupTimeouts:
        """Return the timeouts of a view: its own, else those of groups that both plans have."""
        by_members = self.by_members(plan)
        members = {view.group_key(axes): view.layout.strides(axes) for axes in view.axis_sets}
        by_key = {key: by_members[steps] for key, steps in members.items() if steps in by_members}
        return own._replace(by_key={**by_key, **own.by_key})

    def __str__(self) -> str:
        items = sorted(self.by_key.items())
        by_axes = [f"{' '.join(key)} {format_timeout(timeout)}" for key, timeout in items]
        return ", ".join([format_timeout(self.default), *by_axes])


class GroupOptions(NamedTuple):
    """Options for the creation of the groups of one mesh."""

    backend: str | None  # the requested backend; None is that of the default group
    timeouts: GroupTimeouts
    crossing: Mapping[str, str] = {}  # axis to its policy if its groups cross nodes
    place: Topology | bool = False  # the topology by which ranks are placed; True: by their hosts
    facts: Mapping[str, str] = {}  # what else must be equal on all ranks
    backends: Mapping[Axes, GroupBackend] = {}  # of the groups over single axes

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        world: World,
        *,
        timeout: Time | Mapping[str, Time] | None,
        backend: object,
        crossing: object,
        on_one_node: Iterable[str],
        place: Topology | bool,
    ) -> GroupOptions:
        """Return the options that a caller requests for the groups of a plan. Local.

        Axes in ``on_one_node`` warn if they cross nodes, unless ``crossing`` says something else.
        """
        check_orders(plan)
        timeouts = GroupTimeouts.of(plan, timeout)
        name, backends = parse_backends(plan, backend)
        policies = check_policies(plan.layout, crossing, within=on_one_node)
        check_place(place, world)
        return cls(name, timeouts, policies, place, backends=backends)

    def fields(self, job: Job) -> dict[str, str]:
        """Return the backends and the timeouts as text, equal on all ranks of a mesh."""
        by_axes = [f"{' '.join(axes)} {self.backends[axes]}" for axes in sorted(self.backends)]
        return {
            "backend": ", ".join([self.backend or str(job.world.backend), *by_axes]),
            "timeout": str(self.timeouts),
            "arrival_timeout": format_timeout(job.arrival_timeout),
        }


def check_orders(plan: GroupPlan) -> None:
    """Raise if torch would sort the members of a group that are not in ascending order."""
    for step in () if KEEPS_ORDER else plan.steps:
        if (step.members[:, 1:] < step.members[:, :-1]).any():
            raise SpecError(
                f"the ranks of group({' '.join(step.axes)}) are not in ascending order.",
                "torch below 2.12 sorts them, so group ranks would not be coordinates.",
                fix="torch 2.12 or newer; or list axes from the outside in, and ranks ascending.",
            )


def check_place(place: object, world: World) -> None:
    """Raise if ``place`` is neither a bool nor a topology of all ranks of the world."""
    if isinstance(place, bool):
        return
    if not isinstance(place, Topology):
        raise SpecError(f"place is {place!r}.", fix="place=True, or a Topology.")
    if place.world_size != world.world_size:
        line = f"place has {place.world_size} ranks, the world has {world.world_size}."
        evidence = f"The size of the world: {world.size_evidence}."
        fix = "a topology of all ranks of the world, in their order."
        raise SpecError(line, evidence, fix=fix, world_size=world.world_size)


class GroupRequest(NamedTuple):
    """All groups over one set of axes."""

    axes: Axes  # key of the group plan
    description: str  # the axes as text, for torch
    members: Ints  # int64 (num_groups, group_size)
    timeout: timedelta | None  # None is the default of its backend, or of each device's
    key: GroupKey  # equal groups are shared under it
    backend: str | None = None  # of these groups alone; None is that of the mesh
    options: object = None  # torch's options of the backend; None are its defaults

    @classmethod
    def of(
        cls,
        axes: Axes,
        name: str,
        members: Ints,
        timeout: timedelta | None,
        steps: Strides,
        own: GroupBackend,
        default: str,
    ) -> GroupRequest:
        """Return the request for groups of a name, with the backend of the mesh as the default."""
        backend = own.name or default
        text = str(own._replace(name=backend))
        key: GroupKey = steps, text, timeout or default_timeout(backend)
        own_name = None if backend == default else backend
        description = f"{DESCRIPTION} {name}"
        return cls(axes, description, members, timeout, key, own_name, own.options)


class FoundGroups(NamedTuple):
    """The groups of a plan that exist, and requests for the missing ones; equal on all ranks."""

    plan: GroupPlan
    requests: list[GroupRequest]  # one for each set of groups, in the order of creation
    found: dict[Axes, dist.ProcessGroup | None]  # key of the group plan to this rank's group
    missing: list[GroupRequest]  # the requests without a group


def match_groups(
    plan: GroupPlan, requests: list[GroupRequest], job: Job, registry: GroupRegistry
) -> FoundGroups:
    """Return which of the requested groups exist. Local."""
    found: dict[Axes, dist.ProcessGroup | None] = {}
    groups = FoundGroups(plan, requests, found, [])
    backend = backend_of()
    default = backend, job.default_timeout or default_timeout(backend)
    everyone = None if registry.is_private else [[*range(dist.get_world_size())]]
    for request in groups.requests:
        origin, group = registry.find(request.key)
        if origin in ("created", "external"):
            found[request.axes] = group
        elif request.key[1:] == default and request.members.tolist() == everyone:
            found[request.axes] = dist.group.WORLD
        elif request.key not in [other.key for other in groups.missing]:  # several axes of one rank
            groups.missing.append(request)
    return groups


def list_requests(plan: GroupPlan, options: GroupOptions, backend: str) -> list[GroupRequest]:
    """Return one request for each set of groups in the plan, in the order of creation."""
    backends = backends_by_key(plan, options.backends)
    whole = {plan.layout.axes: "mesh", (): "rank"}
    requests = []

    def request(axes: Axes, key: Axes, members: Ints) -> None:
        name, own = whole.get(axes, " ".join(axes)), backends.get(key, GroupBackend(None))
        limit = options.timeouts.by_key.get(plan.group_key(axes)) or timeout_of_options(own.options)
        requests.append(
            GroupRequest.of(
                *(key, name, members, limit or options.timeouts.default),
                *(plan.layout.strides(axes), own, backend),
            )
        )

    for step in plan.steps:
        request(step.axes, plan.keys[step.axes], step.members)
    for axes in backends:  # axes of size 1 with a backend of their own
        if not plan.group_key(axes):
            request(axes, axes, plan.layout.groups(axes))
    return requests
