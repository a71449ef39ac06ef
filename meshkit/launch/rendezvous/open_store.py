"""Open the store of a job: a TCP store, a file, or memory for a job of one process.

A file is checked before torch opens it. A full disk or a kill may have truncated it, or it is no
store. torch's FileStore then reads forever and holds Python's lock: no deadline would help. A
FileStore appends keys and values, each as a length of four bytes and then its bytes.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlparse

import torch.distributed as dist

from ...core.errors import LaunchError, RankTimeoutError
from ..store.client import address, hosted_by_agent, is_served
from ..store.deadline import Deadline, DeadlineExceededError, run_with_deadline
from ..store.file_store import LOOK, open_file, reserve_room
from ..store.keys import ATTEMPT
from ..store.torchrun_attempt import store_of_attempt
from ..world import World

CONNECT_GRACE = 1.0  # seconds beyond the deadline for a client that is connecting
PROBE_INTERVAL = 0.2  # seconds between two attempts to reach a host that does not answer yet
# Seconds without a new key after which a file that ends inside a key counts as truncated. A write
# of torch takes microseconds, but a busy machine may stop a writer for half a second.
STILL = 3.0


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
        from .mpi import unknown_address_error

        raise unknown_address_error(world)
    store = _open_tcp(world, host, port, deadline)
    if is_served(world):  # jobs share such a store
        store = dist.PrefixStore(urlparse(str(world.init_method)).path, store)
    return store_of_attempt(world, store)


def _path_of(url: str) -> str:
    """Return the path of a file store. torch would wait for minutes if it is unusable."""
    path = Path(url.removeprefix("file://"))
    folder = path.parent
    is_writable = folder.is_dir() and os.access(folder, os.W_OK)
    is_usable = path.is_absolute() and is_writable and _is_new_or_plain(path)
    if is_usable and is_store(path):
        return str(path)
    reason = "It takes an absolute path to a new file, in a folder that exists and is writable."
    if is_usable:
        reason = "The file is no store of torch, or it was cut short."
    fix = 'init_method="file:///shared/new-file", in a folder that all ranks see.'
    raise LaunchError(f"{url} is not usable as a store.", reason, fix=fix)


def _is_new_or_plain(path: Path) -> bool:
    """Return whether the path is free or a plain file, in one look: other ranks create it now."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def is_store(path: Path) -> bool:
    """Return whether torch can open a file as a store. An empty or a missing file is a store.

    Local. A file that seems truncated is read again from there on, as another process may be in the
    middle of a write: of many ranks one always is. torch's lock is not taken, because of Python's
    collector: a store that it destroys would wait for that lock, and hold Python's.

    Cost: one pass over the lengths in the file.
    """
    with suppress(OSError):
        end, has_more = _skip_records(path, 0)
        limit = Deadline.after(STILL)
        while has_more:
            if not limit.sleep(LOOK):
                return False
            last, (end, has_more) = end, _skip_records(path, end)
            limit = Deadline.after(STILL) if end > last else limit
    return True


def _skip_records(path: Path, begin: int) -> tuple[int, bool]:
    """Return the end of the last whole key and value, and whether more bytes follow it.

    Only the lengths are read, as a file that is no store may be large.
    """
    with path.open("rb") as file:
        size, parts = os.fstat(file.fileno()).st_size, 0
        last = end = begin
        while end + 4 <= size:
            file.seek(end)
            head = file.read(4)
            end += 4 + int(struct.unpack("=I", head)[0]) if len(head) == 4 else size
            parts += 1
            if end <= size and parts % 2 == 0:
                last = end
    return last, last < size


def _open_tcp(world: World, host: str, port: int, deadline: Deadline) -> dist.Store:
    """Return a TCP store. Rank 0 hosts it, unless the torchrun agent does."""
    is_host = world.rank == 0 and not hosted_by_agent(world) and not is_served(world)
    if not is_host:
        _wait_for_listener(world, host, port, deadline)
    # The host of the store reaches itself by any name, so a wrong MASTER_ADDR does not block it
    create = partial(
        dist.TCPStore,
        "127.0.0.1" if is_host else host,
        port,
        is_master=is_host,
        timeout=deadline.timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )
    try:
        return create() if is_host else run_with_deadline(deadline.left + CONNECT_GRACE, create)
    except (RuntimeError, DeadlineExceededError) as error:  # of DistNetworkError too
        if not is_host:
            raise _no_store_error(world, host, port, deadline) from error
        if (other := _store_of_other_rank_0(port)) is not None:
            return other
        raise LaunchError(
            f"rank 0 cannot host the store at {host}:{port}.",
            str(error).partition("\n")[0],
            fix="export MASTER_PORT=<a free port> on all ranks, and MASTER_ADDR=<this host>.",
            variables={"MASTER_PORT": str(port)},
        ) from error


def _store_of_other_rank_0(port: int) -> dist.Store | None:
    """Return the store of another rank 0 at this port, so that both processes raise; else None.

    A service that is no store would block torch's client: the client is left after 3 s.
    """

    def look() -> dist.Store | None:
        limit = timedelta(seconds=2)
        store = dist.TCPStore("127.0.0.1", port, timeout=limit, wait_for_workers=False)
        return store if store.check([ATTEMPT]) else None

    try:
        return run_with_deadline(3, look)
    except (RuntimeError, DeadlineExceededError):
        return None


def _wait_for_listener(world: World, host: str, port: int, deadline: Deadline) -> None:
    """Wait until the host listens: torch's own client would wait for twice its timeout."""
    pause = PROBE_INTERVAL / 16  # most ranks come just before the host
    while True:
        try:
            timeout = max(deadline.left, PROBE_INTERVAL)
            socket.create_connection((host, port), timeout=timeout).close()
            return
        except UnicodeError as error:  # a name that no resolver accepts
            raise _no_answer_error(world, f"{host}:{port}", deadline) from error
        except OSError as error:
            if not deadline.sleep(pause):
                raise _no_answer_error(world, f"{host}:{port}", deadline) from error
            pause = min(2 * pause, PROBE_INTERVAL)


def _no_store_error(world: World, host: str, port: int, deadline: Deadline) -> RankTimeoutError:
    """Return the error of an address at which a process has answered that is no store."""
    error = _no_answer_error(world, f"{host}:{port}", deadline)
    with suppress(OSError):
        socket.create_connection((host, port), timeout=1).close()
        line = "A process listens there, but it does not answer as a store of torch does."
        error.evidence = (line, *error.evidence)
        error.fix = (
            "export MASTER_PORT=<a free port> on all ranks, if another program has this one; "
        )
        error.fix += "else look at the log of rank 0 first."
    return error


def _no_answer_error(world: World, endpoint: str, deadline: Deadline) -> RankTimeoutError:
    by_agent = hosted_by_agent(world)
    if is_served(world):
        port = endpoint.rpartition(":")[2]
        return RankTimeoutError(
            f"no store answers rank {world.rank} at {endpoint} within {deadline}.",
            fix=f"python -m meshkit store --port {port}, on that host, before the ranks start.",
        )
    return RankTimeoutError(
        f"no store answers rank {world.rank} at {endpoint} within {deadline}.",
        f"{'The torchrun agent of the first node' if by_agent else 'Rank 0'} hosts it.",
        fix="look at the log of rank 0 first; then check that this host can reach that one.",
        missing_ranks=() if by_agent else (0,),
    )
