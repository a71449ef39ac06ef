"""Find the hosts of the ranks of a live job, for placement and for axes that cross nodes.

A host is a machine. Its containers and pods may have names of their own, and two machines may share
one. Rank 0 reads the machines from which all ranks have arrived, and broadcasts the result if other
ranks need it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import groupby

from ..call import Call, caller_level
from ..errors import SpecError
from ..launch.job import Job
from ..launch.store import error_from_json, error_to_json
from ..layout.crossings import CrossingVerdict, check_crossings
from ..layout.layout import Layout
from ..layout.topology import Topology
from .requests import GroupOptions

NO_STORE = "there is no store, so the hosts of the ranks are unknown."
HOSTS, FIX = "the hosts of the ranks", "look at the log of rank 0 first."


def check_crossing(
    layout: Layout, options: GroupOptions, job: Job, built_by: Call
) -> RuntimeWarning | None:
    """Check whether axes cross nodes against their policies.

    Collective over the world if a policy is ``"error"``, else local. If ``python -W error`` raises
    the warning, return it, so that rank 0 takes part in the broadcast first.
    """
    policies, place = options.crossing, options.place
    is_strict = "error" in policies.values()
    if job.store is None:
        if is_strict:
            raise SpecError(NO_STORE, fix="leave out crossing.")
        return None
    verdict, fatal = CrossingVerdict(), None
    if job.world.rank == 0:
        topology = place if isinstance(place, Topology) else Topology.of_hosts(machines(job))
        verdict = check_crossings(layout, topology, policies)
        if verdict.warning is not None:
            text = str(verdict.warning.quote(built_by))
            try:
                warnings.warn(text, RuntimeWarning, stacklevel=caller_level())
            except RuntimeWarning as warning:  # python -W error
                fatal = warning
    if is_strict:
        error = verdict.error and error_to_json(verdict.error.quote(built_by))
        record = job.broadcast("crossing", error, what=HOSTS, fix=FIX)
        if record:
            raise error_from_json(record)
    return fatal


def gather_hosts(
    job: Job, call: str, facts: Mapping[str, str], summary: str, fix: str
) -> list[str]:
    """Return the machine of each rank of the world, on every rank. Collective over the world.

    Cost: 6 store operations per rank: an agreement round, and the broadcast of rank 0.
    """
    if job.store is None:
        raise SpecError(NO_STORE, fix=fix)
    job.agree(call, facts, summary)
    names = machines(job) if job.world.rank == 0 else []
    counts = [(name, len([*ranks])) for name, ranks in groupby(names)]
    heard = job.broadcast("hosts", counts, what=HOSTS, fix=FIX)
    return [str(name) for name, count in heard for _ in range(int(count))]


def machines(job: Job) -> list[str]:
    """Return the machine of each rank, by the name of its host; equal names get a number. Local."""
    known = job.processes()
    hosts: dict[str, list[str]] = {}  # the name of a host to the machines that have it
    names: dict[str, str] = {}
    for rank in range(job.world.world_size):
        host, machine = known[rank].host, known[rank].machine
        if machine not in names:
            hosts.setdefault(host, []).append(machine)
            names[machine] = host if len(hosts[host]) == 1 else f"{host} ({len(hosts[host])})"
    return [names[known[rank].machine] for rank in range(job.world.world_size)]
