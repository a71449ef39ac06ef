"""Ranks meet at a store under one deadline: who came, and who did not.

A meeting has one verdict, and the first to write it decides: the last rank to check in writes that
all are here; a rank whose deadline has passed writes who is missing. Everybody, those who come late
included, obeys what stands there::

    rank 0   check in ............................ wait ... reads "all"
    rank 1   check in .... wait .................. wait ... reads "all"
    rank 2   check in, the last of three: writes "all"

What ranks bring to a meeting they claim before they check in; where two claims clash, that is the
verdict, and all ranks raise its words. A rank needs six store operations at most, and one more a
claim. Nothing read from the store is ever unpickled.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..core.call import Call
from ..core.errors import MeshkitError, RankTimeoutError, told
from ..core.runs import runs
from .claims import Claim, as_words, from_words, refused
from .world import World

ALL = "all"
# The process that hosts the store must outlive the others' reading of the verdict, or they lose it.
HOST_SLACK = 1.0
NAMED = 8  # missing ranks named one by one in an error


def arrive(
    call: Call,
    store: dist.Store,
    world: World,
    wait: timedelta,
    *,
    since: float | None = None,
    place: Callable[[int], str] | None = None,
    claims: tuple[Claim, ...] = (),
) -> None:
    """Check in, and return when every rank has.

    Collective over ``world``. Every rank counts its own meetings of one name, so that the keys of
    an earlier one are never met again.

    Args:
        call: the call to quote; its name is that of the meeting.
        store: where the ranks met.
        world: who this process is.
        wait: how long to wait for the others.
        since: when that time began, on the monotonic clock; None means now.
        place: a rank's coordinate in words, for the error.
        claims: what must be equal on all ranks, or this rank's alone.

    Raises:
        MeshkitError: the error of a claim that clashes, the same on every rank.
        RankTimeoutError: naming the ranks that did not check in, the same on every rank that did;
            within ``wait``, plus up to a second by which a FileStore rounds, plus on rank 0 up to
            a second more so that all can read it.
    """
    began = time.monotonic() if since is None else since
    left = max(0.001, began + wait.total_seconds() - time.monotonic())
    try:
        number = store.add(f"{call.name}/meetings/{world.rank}", 1)
        meeting = dist.PrefixStore(f"{call.name}/{number}", store)
        said = _verdict(meeting, world, timedelta(seconds=left), claims)
    except dist.DistNetworkError as error:
        raise _store_gone(call, world) from error
    if said != ALL:
        raise _told(json.loads(said), call, meeting, world, wait, place)


def _verdict(meeting: dist.Store, world: World, wait: timedelta, claims: tuple[Claim, ...]) -> str:
    """Claim, check in and wait; what the verdict says."""
    meeting.set(f"here/{world.rank}", socket.gethostname())
    clash = refused(meeting, world.rank, claims)
    if clash is not None:
        meeting.compare_set("verdict", "", as_words(clash))
    if meeting.add("count", 1) == world.world_size:
        meeting.compare_set("verdict", "", ALL)
    try:
        meeting.wait(["verdict"], wait)
    except dist.DistNetworkError:
        raise
    except (dist.DistStoreError, RuntimeError):  # the deadline; FileStore says RuntimeError
        absent = [r for r in range(world.world_size) if not meeting.check([f"here/{r}"])]
        meeting.compare_set("verdict", "", json.dumps({"missing": absent}) if absent else ALL)
    return meeting.get("verdict").decode()


def _told(
    said: dict[str, Any],
    call: Call,
    meeting: dist.Store,
    world: World,
    wait: timedelta,
    place: Callable[[int], str] | None,
) -> MeshkitError:
    """The verdict as an error; rank 0 lets the others read theirs before it goes on."""
    if "missing" not in said:
        _leave_last(meeting, world, world.world_size)
        return from_words(said)
    missing = tuple(int(rank) for rank in said["missing"])
    here = [rank for rank in range(world.world_size) if rank not in missing]
    hosts = sorted({meeting.get(f"here/{rank}").decode() for rank in here})
    _leave_last(meeting, world, len(here))
    return _missing(call, world, wait, missing, hosts, place)


def _missing(
    call: Call,
    world: World,
    wait: timedelta,
    missing: tuple[int, ...],
    hosts: list[str],
    place: Callable[[int], str] | None,
) -> RankTimeoutError:
    """The error that names the ranks that did not come."""
    here = [rank for rank in range(world.world_size) if rank not in missing]
    names = [f"{rank} ({place(rank)})" if place else str(rank) for rank in missing[:NAMED]]
    names += [f"and {len(missing) - NAMED} more"] * (len(missing) > NAMED)
    late = [f"Rank {world.rank} came after that."] * (world.rank in missing)
    text = told(
        f"{len(missing)} of {world.world_size} ranks did not arrive at {call} within "
        f"{wait.total_seconds():g} s.",
        f"Missing: {', '.join(names)}. Arrived: {runs(here)} on {', '.join(hosts)}.",
        *late,
        fix=f"look at the logs of rank{'' if len(missing) == 1 else 's'} {runs(missing)} first.",
    )
    return RankTimeoutError(text, missing_ranks=missing)


def _leave_last(meeting: dist.Store, world: World, readers: int) -> None:
    """On rank 0, which may host the store: wait until all have read, or a second."""
    deadline = time.monotonic() + HOST_SLACK
    read = meeting.add("read", 1)
    while world.rank == 0 and read < readers and time.monotonic() < deadline:
        time.sleep(0.01)
        read = meeting.add("read", 0)


def _store_gone(call: Call, world: World) -> RankTimeoutError:
    text = told(
        f"{call}: rank {world.rank} lost the store where the ranks meet.",
        f"It was at {world.master_addr}:{world.master_port}; the process that hosts it has ended.",
        fix="look at the log of rank 0 first, or of the torchrun agent.",
    )
    return RankTimeoutError(text)
