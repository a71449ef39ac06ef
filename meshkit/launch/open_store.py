"""Open the store of a job: a file, a TCP store of rank 0 or of the torchrun agent, or a served one.

Each way in which that fails has an error of its own: nobody listens, another program does, a name
has no address, the file is none of torch.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlparse

import torch.distributed as dist

from ..errors import LaunchError, MeshkitError, RankTimeoutError
from .connection import close_connections, end_at_exit
from .file_store import is_store, open_file, reserve_room
from .name_lookup import describe_lookup, find_address, is_this_host
from .store import ATTEMPT, SLOW_NAMES_FIX, address, hosted_by_agent, is_served, lost_error
from .times import TIMES, Deadline, DeadlineExceededError, run_with_deadline
from .token import find_prefix, protect
from .urls import is_own_host, join_host
from .world import LOOPBACK_HOST, World, free_port

MIN_CONNECT = 1.0  # seconds that a client has at least to connect
QUIET = 60.0  # seconds beyond the deadline, after which a client that was given up gives up itself
NO_STORE = "A process listens there, but it does not answer as a store of torch does."
WAITS_FOR_NAMES = "A process listens there, and does not answer: it may wait for a name server."
NO_STORE_FIX = "export MASTER_PORT=<a free port> on all ranks, if another program has this one; "
NO_STORE_FIX += "else look at the log of rank 0 first."
MIN_ENTRY = 3.0  # seconds that a job has at least to enter a store that other jobs use
SIGNALS = signal.SIGINT, signal.SIGTERM
LOOK_FOR_SIGNAL = 0.5  # seconds between two looks for a signal


def open_store(world: World, deadline: Deadline, *, keep_file: bool = False) -> dist.Store:
    """Return the store of this job."""
    if world.world_size == 1 and world.init_method in (None, "env://"):
        return dist.HashStore()
    if str(world.init_method).startswith("file://"):
        # torch removes the file when so many users are gone; with -1 never
        users = -1 if keep_file else world.world_size
        url = str(world.init_method)
        try:
            path = _path_of(url)
            reserve_room(path, world.world_size)
            return open_file(path, users, world.world_size, deadline.left)
        except OSError as error:  # of a read-only file system, a quota, a name that is too long
            raise _unusable_file_error(url, f"{error.strerror or error}.") from error
    host, port = address(world)
    if host is None or port is None:
        raise unknown_address_error(world)
    store = _open_tcp(world, host, port, deadline)
    if is_served(world):  # jobs share such a store
        enter = partial(find_prefix, store, urlparse(str(world.init_method)).path)
        try:
            prefix = run_with_deadline(max(deadline.left, MIN_ENTRY), enter)
        except (RuntimeError, DeadlineExceededError) as error:
            if isinstance(error, MeshkitError):
                raise
            raise lost_error(world, silent=True) from error
        store = dist.PrefixStore(prefix, store)
    return store


def _path_of(url: str) -> str:
    """Return the path of a file store. torch would wait for minutes if it is unusable."""
    path = Path(url.removeprefix("file://"))
    is_plain = True
    with suppress(FileNotFoundError):  # one look: other ranks create it now
        is_plain = stat.S_ISREG(path.stat().st_mode)
    is_writable = path.parent.is_dir() and os.access(path.parent, os.W_OK)
    reason = "It takes an absolute path to a new file, in a folder that exists and is writable."
    if path.is_absolute() and is_writable and is_plain:
        if is_store(path):
            return str(path)
        reason = "The file is no store of torch, or it was cut short."
    raise _unusable_file_error(url, reason)


def _unusable_file_error(url: str, reason: str) -> LaunchError:
    fix = 'init_method="file:///shared/new-file", in a folder that all ranks see.'
    return LaunchError(f"{url} is not usable as a store.", reason, fix=fix)


def _open_tcp(world: World, host: str, port: int, deadline: Deadline) -> dist.Store:
    """Return a TCP store. Rank 0 hosts it, unless the torchrun agent does."""
    is_host = world.rank == 0 and not hosted_by_agent(world) and not is_served(world)
    # The host of the store reaches itself by any name, so a wrong MASTER_ADDR does not block it.
    try:
        name = LOOPBACK_HOST if is_host else find_address(host, port, deadline)
    except (OSError, UnicodeError) as error:
        raise _no_answer_error(world, host, port, deadline, error) from error
    options = {"is_master": is_host, "wait_for_workers": False, "multi_tenant": True}
    # a client whose own time is over prints a stack trace
    timeout = deadline.timeout + timedelta(seconds=0 if is_host else QUIET)
    create = partial(dist.TCPStore, name, port, timeout=timeout, **options)
    try:
        store = create() if is_host else run_with_deadline(max(deadline.left, MIN_CONNECT), create)
        store.set_timeout(deadline.timeout)
        end_at_exit(store, is_host=is_host)
        return store
    except (RuntimeError, DeadlineExceededError) as error:  # of DistNetworkError too
        if not is_host:
            lost = _no_answer_error(world, host, port, deadline)
            with suppress(OSError):
                socket.create_connection((host, port), timeout=1).close()
                is_slow, lookup = describe_lookup(host, TIMES.lookup)
                line, fix = NO_STORE, NO_STORE_FIX
                if is_slow:
                    line, fix = WAITS_FOR_NAMES, SLOW_NAMES_FIX
                lost = lost.but(evidence=(line, lookup, *lost.evidence), fix=fix)
            raise lost from error
        if (other := _store_of_other_rank_0(port)) is not None:
            return other
        fix = f"export MASTER_PORT={free_port()} on all ranks, a port that is free on this host; "
        fix += "and MASTER_ADDR=<this host>."
        if (world.init_method or "").startswith("tcp:"):
            url = f"tcp://{join_host(host, free_port())}"
            fix = f'init_method="{url}" on all ranks, a port that is free here.'
        raise LaunchError(
            f"rank 0 cannot host the store at {host}:{port}.",
            str(error).partition("\n")[0],
            fix=fix,
            variables={"MASTER_PORT": str(port)},
        ) from error


def _store_of_other_rank_0(port: int) -> dist.Store | None:
    """Return the store of another rank 0 at this port, so that both processes raise; else None."""

    def look() -> dist.Store | None:
        limit = timedelta(seconds=2)
        store = dist.TCPStore("127.0.0.1", port, timeout=limit, wait_for_workers=False)
        return store if store.check([ATTEMPT]) else None

    try:
        return run_with_deadline(3, look)  # a service that is no store would block torch's client
    except (RuntimeError, DeadlineExceededError):
        return None


def _no_answer_error(
    world: World, host: str, port: int, deadline: Deadline, reason: Exception | None = None
) -> RankTimeoutError:
    summary = f"no store answers rank {world.rank} at {host}:{port} within {deadline}."
    if is_served(world):
        fix = f"python -m meshkit store --port {port}, on that host, before the ranks start."
        return RankTimeoutError(summary, fix=fix)
    by_agent = hosted_by_agent(world)
    hosting = f"{'The torchrun agent of the first node' if by_agent else 'Rank 0'} hosts it."
    given = "export MASTER_ADDR=<host of rank 0>, the same on all ranks"
    if (world.init_method or "").startswith("tcp:"):
        given = f'init_method="tcp://<host of rank 0>:{port}" on all ranks'
    if isinstance(reason, socket.gaierror):  # no other rank is to blame
        nameless = f"{host} has no address on this host: {reason.strerror}."
        return RankTimeoutError(summary, nameless, hosting, fix=f"{given}, as this host knows it.")
    missing = () if by_agent else (0,)
    if is_own_host(host) and world.local_world_size != world.world_size:
        own = f"{host} is this host itself, on each host another one."
        fix = f"{given}, if the ranks are on several hosts; else look at the log of rank 0 first."
        return RankTimeoutError(summary, own, hosting, fix=fix, missing_ranks=missing)
    with suppress(DeadlineExceededError):
        if run_with_deadline(TIMES.lookup, partial(is_this_host, host)):
            fix = f"{given}; if this host is right, look at the log of rank 0 first."
            here = f"{host} is the host of rank {world.rank} itself."
            return RankTimeoutError(summary, here, hosting, fix=fix, missing_ranks=missing)
    return RankTimeoutError(
        summary,
        hosting,
        fix="look at the log of rank 0 first; then check that this host can reach that one.",
        missing_ranks=missing,
    )


def unknown_address_error(world: World, *evidence: str) -> LaunchError:
    """Return the error of a job whose ranks know no store."""
    variables = {"MASTER_ADDR": world.master_addr, "MASTER_PORT": world.master_port}
    return LaunchError(
        f"rank {world.rank} of {world.world_size} has no address of the job's store.",
        f"init_method={world.init_method!r}, MASTER_ADDR={world.master_addr}, "
        f"MASTER_PORT={world.master_port} ({world.launcher}).",
        *evidence,
        fix="one of these, the same on all ranks:\n"
        "    export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500   "
        '(init_method="env://" reads them)\n'
        '    init(init_method="tcp://<host of rank 0>:29500")\n'
        '    init(init_method="file:///shared/new-file")\n'
        "    pip install mpi4py   (under mpirun and mpiexec)",
        variables={k: v and str(v) for k, v in variables.items()},
    )


def serve_store(port: int, announce: Callable[[str], None], token: str = "") -> None:
    """Host a TCP store until SIGINT or SIGTERM; with a token, for processes that have it. Local."""
    ended = threading.Event()
    for number in SIGNALS:
        signal.signal(number, lambda *_: ended.set())
    try:
        host = socket.gethostname()
        store = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:  # DistNetworkError is one
        raise LaunchError(
            f"port {port} of this host cannot be used.",
            str(error).partition("\n")[0],
            fix=f"python -m meshkit store --port {free_port()}, which is free.",
        ) from error
    if token:
        protect(store, token)
    announce(f"store://{host}:{store.port}")
    while not ended.wait(LOOK_FOR_SIGNAL):  # a thread of torch may get it, which wakes no other
        pass
    close_connections(store.port)
