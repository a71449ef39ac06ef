"""Ranks meet at a store under one deadline: who came, and who did not.

A rank checks in with one ``set`` and one ``add``, then waits for one key that the last to arrive
sets: O(1) store operations a rank. Nothing read from the store is ever unpickled.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlparse

import torch.distributed as dist

from ..core.call import Call
from ..core.errors import LaunchError, RankTimeoutError, told
from ..core.runs import runs
from .environment import World

# The process that hosts the store must outlive the others' reading of the verdict.
HOST_SLACK = timedelta(seconds=1)
NAMED = 8  # missing ranks named one by one in an error


def open_store(call: Call, world: World, wait: timedelta) -> dist.Store:
    """The store where the ranks of this job meet.

    Args:
        call: the call to quote.
        world: who this process is, and where ranks meet.
        wait: how long to wait for the host of the store.

    Raises:
        LaunchError: where nothing says where to meet.
        RankTimeoutError: where the host of the store did not answer.
    """
    url = urlparse(world.init_method or "env://")
    if world.world_size == 1 and world.init_method is None:
        return dist.HashStore()
    if url.scheme == "file":
        return dist.FileStore(url.netloc + url.path, world.world_size)
    if url.scheme == "tcp" and url.hostname and url.port is not None:
        return _tcp(call, world, url.hostname, url.port, wait)
    if url.scheme == "env" and world.master_addr and world.master_port is not None:
        return _tcp(call, world, world.master_addr, world.master_port, wait)
    text = told(
        f"{call}: rank {world.rank} of {world.world_size} does not know where to meet the others.",
        f"init_method={world.init_method!r}, MASTER_ADDR={world.master_addr}, "
        f"MASTER_PORT={world.master_port} ({world.launcher}).",
        fix="export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500, or "
        'init(init_method="tcp://host:29500") or init(init_method="file:///shared/new-file").',
    )
    raise LaunchError(text, variables={"MASTER_ADDR": world.master_addr})


def _tcp(call: Call, world: World, host: str, port: int, wait: timedelta) -> dist.Store:
    """A TCP store, hosted by rank 0 unless the torchrun agent already hosts it."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    hosts = world.rank == 0 and not (agent and world.launcher == "torchrun")
    try:
        return dist.TCPStore(
            host, port, is_master=hosts, timeout=wait, wait_for_workers=False, multi_tenant=True
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        if hosts:
            text = told(
                f"{call}: rank 0 cannot host the store at {host}:{port}.",
                fix="export MASTER_PORT=<a free port> on all ranks.",
            )
            raise LaunchError(text, variables={"MASTER_PORT": str(port)}) from error
        text = told(
            f"{call}: no store answers rank {world.rank} at {host}:{port} within "
            f"{wait.total_seconds():g} s.",
            "Rank 0 hosts it, or the torchrun agent does.",
            fix="look at the log of rank 0 first; then check that this host can reach that one.",
        )
        raise RankTimeoutError(text, missing_ranks=() if agent else (0,)) from error


def arrive(
    call: Call,
    store: dist.Store,
    world: World,
    wait: timedelta,
    *,
    place: Callable[[int], str] | None = None,
) -> None:
    """Check in, and return when every rank has.

    Collective over ``world``. Costs a rank five store operations at most. Every rank counts its
    own meetings of one name, so that keys of earlier ones are never met again.

    Args:
        call: the call to quote; its name is that of the meeting.
        store: where the ranks met.
        world: who this process is.
        wait: how long to wait for the others; the host of the store waits a second longer.
        place: a rank's coordinate in words, for the error.

    Raises:
        RankTimeoutError: naming the ranks that did not check in.
    """
    number = store.add(f"{call.name}/meetings/{world.rank}", 1)
    meeting = dist.PrefixStore(f"{call.name}/{number}", store)
    meeting.set(f"here/{world.rank}", socket.gethostname())
    if meeting.add("count", 1) == world.world_size:
        meeting.set("all", "here")
    try:
        meeting.wait(["all"], wait + (HOST_SLACK if world.rank == 0 else timedelta(0)))
    except (dist.DistStoreError, RuntimeError) as error:
        raise _missing(call, meeting, world, wait, place) from error


def _missing(
    call: Call,
    meeting: dist.Store,
    world: World,
    wait: timedelta,
    place: Callable[[int], str] | None,
) -> RankTimeoutError:
    """Who did not come, read from the check-ins of those who did."""
    hosts = {rank: _host(meeting, rank) for rank in range(world.world_size)}
    missing = tuple(rank for rank, host in hosts.items() if host is None)
    here = [rank for rank, host in hosts.items() if host is not None]
    names = [f"{rank} ({place(rank)})" if place else str(rank) for rank in missing[:NAMED]]
    more = [f"and {len(missing) - NAMED} more"] if len(missing) > NAMED else []
    on = ", ".join(sorted({host for host in hosts.values() if host is not None}))
    who = f"rank{'' if len(missing) == 1 else 's'} {runs(missing)}"
    text = told(
        f"{len(missing)} of {world.world_size} ranks did not arrive at {call} within "
        f"{wait.total_seconds():g} s.",
        f"Missing: {', '.join(names + more)}. Arrived: {runs(here)} on {on}.",
        fix=f"look at the logs of {who} first.",
    )
    return RankTimeoutError(text, missing_ranks=missing)


def _host(meeting: dist.Store, rank: int) -> str | None:
    """The host a rank checked in from; None where it did not, or the store has gone."""
    try:
        key = f"here/{rank}"
        return meeting.get(key).decode() if meeting.check([key]) else None
    except (dist.DistStoreError, RuntimeError):
        return None
