"""Where the ranks of a live job sit: the host names with which they checked in.

Rank 0 reads them all, and tells the others where they need it: one of many ranks asks the store a
question of the size of the world, not all of them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from itertools import groupby

import torch.distributed as dist

from ...core.call import Verbatim
from ...core.errors import Change, Fix, SpecError
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.topology.crossing_policy import CrossingVerdict, check_crossings
from ...core.topology.placement import placed
from ...core.topology.topology import Topology
from ...launch.agreement.broadcast import broadcast_from_rank_0
from ...launch.agreement.consensus import Participants, Proposal, agree
from ...launch.default_group import Job
from ...launch.launchers.world import World
from ...launch.store.check_in import error_from_json, error_to_json, hosts_of
from ...launch.store.client import STORE_GRACE, store_call
from ..groups.options import GroupOptions
from ..groups.registry import GroupRegistry
from .proposal import ABOUT, proposal_fields


def placed_live(plan: GroupPlan, record: Job, terms: GroupOptions, shared: GroupRegistry) -> Layout:
    """The layout with its ranks on the nearest wires; the same on every rank.

    Collective over the world where the nodes are to be found out, local where they are given.

    Args:
        plan: the grid and the groups that are asked for.
        record: what is known of the default group.
        terms: on what terms, and where ranks sit.
        shared: the groups that are there already.

    Raises:
        SpecError: where the ranks cannot be placed, or there is no store to tell where they are.
        DisagreementError: where a rank asks for something else.
        RankTimeoutError: where ranks did not come.
    """
    if isinstance(terms.place, Topology):
        return placed(plan.layout, terms.place).layout
    matter = Proposal("build_mesh", proposal_fields(plan, record, terms, shared), ABOUT)
    fix = (Change(place=Verbatim("meshkit.Topology.of_hosts([...])")), ", a host for each rank.")
    return placed(plan.layout, Topology.of_hosts(checked_in(matter, record, fix))).layout


def check_place(place: object, world: World) -> None:
    """Refuse what says no place.

    Raises:
        SpecError: for anything but a bool, or a topology of as many ranks as the world has.
    """
    if isinstance(place, bool):
        return
    if not isinstance(place, Topology):
        raise SpecError(f"place is {place!r}.", fix=(Change(place=True), ", or a Topology."))
    if place.world_size != world.world_size:
        line = f"place has {place.world_size} ranks, the world has {world.world_size}."
        fix = "a topology of all ranks of the world, in their order."
        raise SpecError(line, f"{world.size_evidence}.", fix=fix, world_size=world.world_size)


def check_crossing(
    layout: Layout, record: Job, number: int, terms: GroupOptions
) -> RuntimeWarning | None:
    """Refuse or tell that axes cross nodes. Collective where one is to be refused, else local.

    Args:
        layout: the grid.
        record: what is known of the default group.
        number: that of the meeting in which the mesh was agreed upon.
        terms: what to do, by axis; and where ranks sit, if that was said.

    Returns:
        The warning where Python was told to make an error of it, for the caller to raise where the
        other ranks hear of it; else None.

    Raises:
        SpecError: the same on every rank; where an error is asked for, and nothing tells the nodes.
        RankTimeoutError: where rank 0, or the store, says nothing.

    Warns:
        RuntimeWarning: on rank 0.
    """
    world, store, policies = record.world, record.store, terms.crossing
    watched = {axis for axis in policies if layout.sizes[axis] > 1}
    strict = any(policies[axis] == "error" for axis in watched)
    if store is None and strict:
        fix = (Change(crossing=None), ".")
        raise SpecError("no store tells where ranks are.", fix=fix)
    if store is None or not watched:
        return None
    found, fatal = CrossingVerdict(), None
    if world.rank == 0:
        topology = terms.place
        if not isinstance(topology, Topology):
            topology = Topology.of_hosts(_hosts(record, store, number))
        found = check_crossings(layout, topology, policies)
        try:
            if found.warning is not None:  # at the line that calls build_mesh
                warnings.warn(str(found.warning), RuntimeWarning, stacklevel=6)
        except RuntimeWarning as refused:  # python -W error
            fatal = refused
    if strict:
        error = _heard(
            record,
            store,
            f"crossing/{number}",
            lambda: error_to_json(found.error) if found.error else "",
        )
        if error:
            raise error_from_json(error)
    return fatal


def checked_in(matter: Proposal, record: Job, fix: Fix) -> list[str]:
    """From which host each rank of the world has come, on every rank. Collective over the world.

    Seven store operations a rank: a meeting, and what rank 0 has read there, for which it
    needs as many more as :func:`hosts_of` says.

    Args:
        matter: what the ranks meet about.
        record: what is known of the default group.
        fix: what to do where no store tells.

    Returns:
        The names of the hosts, by rank.

    Raises:
        SpecError: where no store tells where ranks are.
        DisagreementError: where a rank asks for something else.
        RankTimeoutError: where ranks did not come.
    """
    store = record.store
    if store is None:
        raise SpecError("no store tells where ranks are.", fix=fix)
    number = agree(matter, Participants.of(store, record.world), record.arrival_timeout)

    def say() -> str:
        hosts = _hosts(record, store, number)
        return json.dumps([(host, len([*ranks])) for host, ranks in groupby(hosts)])

    said = json.loads(_heard(record, store, f"hosts/{number}", say))
    return [host for host, count in said for _ in range(count)]


def _heard(record: Job, store: dist.Store, key: str, say: Callable[[], str]) -> str:
    """What rank 0 knows of the nodes. Collective."""
    what, fix = "where ranks are", "look at the log of rank 0 first."
    wait = record.arrival_timeout
    return broadcast_from_rank_0(store, record.world, key, say, wait, what=what, fix=fix)


def _hosts(record: Job, store: dist.Store, number: int) -> list[str]:
    """The host of each rank that came to a meeting of the world.

    One store operation; where they came from several hosts three, or in a file one for each rank.

    Raises:
        RankTimeoutError: where the store does not answer.
    """
    ranks, meeting = range(record.world.world_size), dist.PrefixStore(f"meeting/{number}", store)
    return store_call(record.world, STORE_GRACE, lambda: hosts_of(meeting, ranks))
