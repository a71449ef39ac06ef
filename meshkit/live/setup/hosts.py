"""Find the hosts of the ranks of a live job, for placement and for axes that cross nodes.

Rank 0 reads the host names with which all ranks checked in, and broadcasts the result if other
ranks need it. No other rank reads an entry for each rank of the world.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from itertools import groupby
from typing import cast

import torch.distributed as dist

from ...core.call import Call, caller_level
from ...core.errors import SpecError
from ...core.grid.layout import Layout
from ...core.topology.crossing_policy import CrossingVerdict, check_crossings
from ...core.topology.topology import Topology
from ...launch.agreement.broadcast import broadcast_from_rank_0
from ...launch.agreement.proposal import Participants, Proposal
from ...launch.current_job import Job
from ...launch.launchers.world import World
from ...launch.store.check_in import read_hosts
from ...launch.store.deadline import STORE_GRACE, Deadline, store_call
from ...launch.store.error_json import error_from_json, error_to_json
from ...launch.store.foreign_value import read_value, reading
from ...launch.store.keys import ROUND
from ..groups import GroupOptions


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


def find_topology(place: Topology | bool, proposal: Proposal, job: Job) -> Topology:
    """Return the topology for placement, equal on every rank.

    Collective over the world, unless the caller has given a topology.
    """
    if isinstance(place, Topology):
        return place
    fix = "place=meshkit.Topology.of_hosts([...]), with a host for each rank."
    return Topology.of_hosts(gather_hosts(proposal, job, fix))


def check_crossing(
    layout: Layout, options: GroupOptions, job: Job, built_by: Call, round_id: int
) -> RuntimeWarning | None:
    """Check whether axes cross nodes against their policies.

    Collective over the world if a policy is ``"error"``, else local. If ``python -W error`` raises
    the warning, return it, so that rank 0 takes part in the broadcast first.
    """
    policies, place = options.crossing, options.place
    is_strict = "error" in policies.values()
    if job.store is None and is_strict:
        raise _no_store_error("leave out crossing.")
    if job.store is None:
        return None
    verdict, fatal = CrossingVerdict(), None
    if job.world.rank == 0:
        topology = place if isinstance(place, Topology) else _read_topology(job, round_id)
        verdict = check_crossings(layout, topology, policies)
        if verdict.warning is not None:
            text = str(verdict.warning.quote(built_by))
            try:
                warnings.warn(text, RuntimeWarning, stacklevel=caller_level())
            except RuntimeWarning as warning:  # python -W error
                fatal = warning
    if is_strict:
        error = _broadcast(job, f"crossing/{round_id}", lambda: _to_json(verdict, built_by))
        if error:
            raise read_value(f"crossing/{round_id}", error, error_from_json)
    return fatal


def gather_hosts(proposal: Proposal, job: Job, fix: str) -> list[str]:
    """Return the host of each rank of the world, on every rank. Collective over the world.

    Cost: 6 store operations per rank: an agreement round, and the broadcast of rank 0. Rank 0 needs
    1 more if all ranks are on one host, else 3. With a FileStore, several hosts cost rank 0 one
    operation for each rank.
    """
    if job.store is None:
        raise _no_store_error(fix)
    round_id = job.agree(proposal)

    def read() -> str:
        hosts = _read_hosts(job, round_id)
        return json.dumps([(host, len([*ranks])) for host, ranks in groupby(hosts)])

    key = f"hosts/{round_id}"
    text = _broadcast(job, key, read)
    with reading(key, text):
        counts = [(str(host), int(count)) for host, count in json.loads(text)]
        if sum(count for _, count in counts) != job.world.world_size:
            raise ValueError(counts)
    return [host for host, count in counts for _ in range(count)]


def _no_store_error(fix: str) -> SpecError:
    return SpecError("there is no store, so the hosts of the ranks are unknown.", fix=fix)


def _to_json(verdict: CrossingVerdict, call: Call) -> str:
    return "" if verdict.error is None else error_to_json(verdict.error.quote(call))


def _broadcast(job: Job, key: str, read: Callable[[], str]) -> str:
    """Return the text that ``read`` gives on rank 0, on every rank. Collective over the world."""
    what, fix = "the hosts of the ranks", "look at the log of rank 0 first."
    participants = cast(Participants, job.participants())
    deadline = Deadline.after(job.arrival_timeout)
    return broadcast_from_rank_0(participants, key, read, deadline, what=what, fix=fix)


def _read_topology(job: Job, round_id: int) -> Topology:
    return Topology.of_hosts(_read_hosts(job, round_id))


def _read_hosts(job: Job, round_id: int) -> list[str]:
    """Return the host of each rank that took part in a round of the world.

    Cost: 1 store operation if all ranks are on one host, else 3. With a FileStore, several hosts
    cost one operation for each rank.
    """
    store = dist.PrefixStore(ROUND.format("", round_id), cast(dist.Store, job.store))
    ranks = range(job.world.world_size)
    return store_call(job.world, STORE_GRACE, lambda: read_hosts(store, ranks))
