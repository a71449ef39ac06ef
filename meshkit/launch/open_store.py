"""Open the store of a job: a TCP store, a file, or memory for a job of one process."""

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

from ..core.errors import LaunchError, RankTimeoutError
from .file_store import is_store, open_file, reserve_room
from .store import ATTEMPT, address, hosted_by_agent, is_served, unknown_address_error
from .times import Deadline, DeadlineExceededError, run_with_deadline
from .world import World

SIGNALS = signal.SIGINT, signal.SIGTERM
LOOK_FOR_SIGNAL = 0.5  # seconds between two looks for a signal
CONNECT_GRACE = 1.0  # seconds beyond the deadline for a client that is connecting
PROBE_INTERVAL = 0.2  # seconds between two attempts to reach a host that does not answer yet
NO_STORE = "A process listens there, but it does not answer as a store of torch does."
NO_STORE_FIX = "export MASTER_PORT=<a free port> on all ranks, if another program has this one; "
NO_STORE_FIX += "else look at the log of rank 0 first."
MAX_PROBE = 3.0  # seconds for one attempt: an address that drops packets must not hide the next one


def open_store(world: World, deadline: Deadline, *, keep_file: bool = False) -> dist.Store:
    """Return the store of this job."""
    if world.world_size == 1 and world.init_method in (None, "env://"):
        return dist.HashStore()
    if str(world.init_method).startswith("file://"):
        # torch removes the file when so many users are gone; with -1 never
        users = -1 if keep_file else world.world_size
        path = _path_of(str(world.init_method))
        reserve_room(path, world.world_size)
        return open_file(path, users, world.world_size, deadline.left)
    host, port = address(world)
    if host is None or port is None:
        raise unknown_address_error(world)
    store = _open_tcp(world, host, port, deadline)
    if is_served(world):  # jobs share such a store
        store = dist.PrefixStore(urlparse(str(world.init_method)).path, store)
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
    fix = 'init_method="file:///shared/new-file", in a folder that all ranks see.'
    raise LaunchError(f"{url} is not usable as a store.", reason, fix=fix)


def _open_tcp(world: World, host: str, port: int, deadline: Deadline) -> dist.Store:
    """Return a TCP store. Rank 0 hosts it, unless the torchrun agent does."""
    is_host = world.rank == 0 and not hosted_by_agent(world) and not is_served(world)
    if not is_host:
        _wait_for_listener(world, host, port, deadline)
    # The host of the store reaches itself by any name, so a wrong MASTER_ADDR does not block it
    name = "127.0.0.1" if is_host else host
    options = {"is_master": is_host, "wait_for_workers": False, "multi_tenant": True}
    create = partial(dist.TCPStore, name, port, timeout=deadline.timeout, **options)
    try:
        return create() if is_host else run_with_deadline(deadline.left + CONNECT_GRACE, create)
    except (RuntimeError, DeadlineExceededError) as error:  # of DistNetworkError too
        if not is_host:
            lost = _no_answer_error(world, host, port, deadline)
            with suppress(OSError):
                socket.create_connection((host, port), timeout=1).close()
                lost.evidence = (NO_STORE, *lost.evidence)
                lost.fix = NO_STORE_FIX
            raise lost from error
        if (other := _store_of_other_rank_0(port)) is not None:
            return other
        raise LaunchError(
            f"rank 0 cannot host the store at {host}:{port}.",
            str(error).partition("\n")[0],
            fix="export MASTER_PORT=<a free port> on all ranks, and MASTER_ADDR=<this host>.",
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


def _wait_for_listener(world: World, host: str, port: int, deadline: Deadline) -> None:
    """Wait until the host listens: torch's own client would wait for twice its timeout."""
    pause = PROBE_INTERVAL / 16  # most ranks come just before the host
    while True:
        try:
            timeout = min(max(deadline.left, PROBE_INTERVAL), MAX_PROBE)
            socket.create_connection((host, port), timeout=timeout).close()
            return
        except UnicodeError as error:  # a name that no resolver accepts
            raise _no_answer_error(world, host, port, deadline) from error
        except OSError as error:
            if not deadline.sleep(pause):
                raise _no_answer_error(world, host, port, deadline) from error
            pause = min(2 * pause, PROBE_INTERVAL)


def _no_answer_error(world: World, host: str, port: int, deadline: Deadline) -> RankTimeoutError:
    summary = f"no store answers rank {world.rank} at {host}:{port} within {deadline}."
    if is_served(world):
        fix = f"python -m meshkit store --port {port}, on that host, before the ranks start."
        return RankTimeoutError(summary, fix=fix)
    by_agent = hosted_by_agent(world)
    return RankTimeoutError(
        summary,
        f"{'The torchrun agent of the first node' if by_agent else 'Rank 0'} hosts it.",
        fix="look at the log of rank 0 first; then check that this host can reach that one.",
        missing_ranks=() if by_agent else (0,),
    )


def serve_store(port: int, announce: Callable[[str], None]) -> None:
    """Host a TCP store until SIGINT or SIGTERM. Local."""
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
            fix="python -m meshkit store --port <a free port>.",
        ) from error
    announce(f"store://{host}:{store.port}")
    while not ended.wait(LOOK_FOR_SIGNAL):  # a thread of torch may get it, which wakes no other
        pass
