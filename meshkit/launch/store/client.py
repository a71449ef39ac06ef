"""The store where the ranks of a job meet: a file, an address, or memory for a process alone."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlparse

import torch.distributed as dist

from ...core.errors import LaunchError, MeshkitError, RankTimeoutError, format_error
from ..launchers.world import World
from ..rendezvous.mpi import nowhere
from .deadline import DeadlineExceededError, run_with_deadline
from .file_format import is_store
from .torchrun_attempt import store_of_attempt

Result = TypeVar("Result")

# Beyond a deadline so long is waited for a store that answers nothing: a FileStore rounds up to a
# second, one rank looks at all others for a second, and rank 0, which may host it, stays a second
# longer than others so that they can read.
STORE_GRACE = 4.0
PROBE_INTERVAL = 0.2  # seconds between two knocks at a host that does not answer yet


def open_store(
    world: World,
    wait: timedelta,
    *,
    since: float | None = None,
    keep: bool = False,
) -> dist.Store:
    """The store of this job, as all its ranks see it.

    Args:
        world: who this process is, and where ranks meet.
        wait: how long to wait for the host of the store.
        since: when that time began, on the monotonic clock; None means now.
        keep: whether a file is to outlive this rank's use of it, though it may be the last.

    Raises:
        LaunchError: where nothing says where to meet, or rank 0 cannot host the store there.
        RankTimeoutError: where the host of the store did not answer in time.
    """
    if world.world_size == 1 and world.init_method in (None, "env://"):
        return dist.HashStore()
    if str(world.init_method).startswith("file://"):
        # torch removes the file with the last of so many users; of -1 never
        return dist.FileStore(_file(str(world.init_method)), -1 if keep else world.world_size)
    host, port = address(world)
    if host is None or port is None:
        raise nowhere(world)
    began = time.monotonic() if since is None else since
    return store_of_attempt(world, _tcp(world, host, port, wait, began))


def store_call(world: World, seconds: float, work: Callable[[], Result]) -> Result:
    """What ``work`` hears from the store; in bounded time, whatever has become of its host.

    Raises:
        RankTimeoutError: where the store has gone, or answers nothing within so many seconds.
    """
    try:
        return run_with_deadline(seconds, work)
    except MeshkitError:
        raise
    except RuntimeError as error:  # of any store; a file that cannot be read is DistStoreError
        raise store_lost_error(world) from error
    except DeadlineExceededError:
        raise store_lost_error(world, silent=True) from None


def address(world: World) -> tuple[str | None, int | None]:
    """Host and port of the TCP store, where both are known."""
    if world.init_method in (None, "env://"):
        return world.master_addr, world.master_port
    try:
        url = urlparse(str(world.init_method))
        return (url.hostname, url.port) if url.scheme == "tcp" else (None, None)
    except ValueError:  # a port that is no number, half an IPv6 address
        return None, None


def _file(url: str) -> str:
    """The path of a file store: torch's own would wait for minutes for one that cannot be.

    Raises:
        LaunchError: where there cannot be such a file.
    """
    path = Path(url.removeprefix("file://"))
    folder = path.parent
    usable = folder.is_dir() and os.access(folder, os.W_OK)
    plain = path.is_absolute() and usable and _new_or_plain(path)
    if plain and is_store(path):
        return str(path)
    why = "It takes an absolute path, to a new file in a folder that is there and can be written."
    if plain:
        why = "There is a file that is no store of torch's, or one that was cut short."
    fix = 'init_method="file:///shared/new-file", in a folder that all ranks see.'
    raise LaunchError(f"there can be no store in {url}.", why, fix=fix)


def _new_or_plain(path: Path) -> bool:
    """Whether nothing is there yet, or a plain file; one look, as other ranks are making it."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _tcp(world: World, host: str, port: int, wait: timedelta, began: float) -> dist.Store:
    """A TCP store, hosted by rank 0 unless the torchrun agent already hosts it."""
    hosts = world.rank == 0 and not _has_agent(world)
    if not hosts:
        _wait_for_listener(world, host, port, wait, began)
    try:
        # Whoever hosts it is here, by any name: a wrong MASTER_ADDR must not keep it waiting.
        return dist.TCPStore(
            "127.0.0.1" if hosts else host,
            port,
            is_master=hosts,
            timeout=wait,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:  # DistNetworkError is one; torch 2.6 raises a plain one
        if not hosts:
            raise _no_answer(world, f"{host}:{port}", wait) from error
        if (theirs := _of_another_rank_0(port)) is not None:
            return theirs
        raise LaunchError(
            f"rank 0 cannot host the store at {host}:{port}.",
            str(error).partition("\n")[0],
            fix="export MASTER_PORT=<a free port> on all ranks, and MASTER_ADDR=<this host>.",
            variables={"MASTER_PORT": str(port)},
        ) from error


def hosted_by_rank_0(world: World) -> bool:
    """Whether the store goes with rank 0; also where that is not known."""
    return not str(world.init_method).startswith("file://") and not _has_agent(world)


def _of_another_rank_0(port: int) -> dist.Store | None:
    """The store that holds this rank 0's port, where it is one of meshkit's: both are told.

    A service that is no store would keep torch's client waiting: it is left after 3 s.
    """

    def look() -> dist.Store | None:
        limit = timedelta(seconds=2)
        store = dist.TCPStore("127.0.0.1", port, timeout=limit, wait_for_workers=False)
        return store if store.check(["attempt"]) else None

    try:
        return run_with_deadline(3, look)
    except (RuntimeError, DeadlineExceededError):
        return None


def _has_agent(world: World) -> bool:
    """Whether the torchrun agent hosts the store: where nobody asked for another one."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return agent and world.launcher == "torchrun" and world.init_method in (None, "env://")


def _wait_for_listener(world: World, host: str, port: int, wait: timedelta, began: float) -> None:
    """Wait until the host listens: torch's own client would wait for twice its timeout."""
    deadline = began + wait.total_seconds()
    while True:
        try:
            left = max(deadline - time.monotonic(), PROBE_INTERVAL)
            socket.create_connection((host, port), timeout=left).close()
            return
        except UnicodeError as error:  # a name that no resolver takes
            raise _no_answer(world, f"{host}:{port}", wait) from error
        except OSError as error:
            if time.monotonic() + PROBE_INTERVAL >= deadline:
                raise _no_answer(world, f"{host}:{port}", wait) from error
            time.sleep(PROBE_INTERVAL)


def store_lost_error(world: World, *, silent: bool = False) -> RankTimeoutError:
    """The error of a store that has gone, or that answers nothing any more."""
    url = str(world.init_method)
    if url.startswith("file://"):
        evidence, fix = f"It is {url}, which does not answer.", "look at that file system first."
    else:
        where = url if url.startswith("tcp://") else f"{world.master_addr}:{world.master_port}"
        how = "is stopped, or the network to it is cut" if silent else "has ended"
        evidence = f"It was at {where}; the process that hosts it {how}."
        fix = "look at the log of rank 0 first, or of the torchrun agent."
    text = format_error(
        f"rank {world.rank} lost the store where the ranks meet.", evidence, fix=fix
    )
    missing = (0,) if hosted_by_rank_0(world) and world.rank else ()
    return RankTimeoutError(text, missing_ranks=missing)


def _no_answer(world: World, where: str, wait: timedelta) -> RankTimeoutError:
    agent = _has_agent(world)
    return RankTimeoutError(
        f"no store answers rank {world.rank} at {where} within {wait.total_seconds():g} s.",
        f"{'The torchrun agent of the first node' if agent else 'Rank 0'} hosts it.",
        fix="look at the log of rank 0 first; then check that this host can reach that one.",
        missing_ranks=() if agent else (0,),
    )


class Generation(dist.PrefixStore):
    """A store under the prefix of a generation, to which nobody has been before this process.

    So what this rank has done here it counts itself, without a word to the store.

    Args:
        number: of the generation.
        base: the store of the job.
    """

    def __init__(self, number: int, base: dist.Store) -> None:
        super().__init__(f"meshkit/{number}", base)
        self._meetings: Counter[str] = Counter()

    def next_meeting(self, keys: str) -> int:
        """The number of this rank's next meeting under some keys, from 1."""
        self._meetings[keys] += 1
        return self._meetings[keys]
