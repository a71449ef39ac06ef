"""The process of a rank: its identity, its state, and whether it may communicate."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from torch.utils.data import get_worker_info

from ..errors import LaunchError
from .judges import Process, RankState, Sighting

FIX = (
    "communicate in the process of the rank; here, use mesh.coordinate, mesh.size, mesh.peers or "
    "mesh.sampler."
)


def current_process() -> Process:
    """Return the identity of this process."""
    host, pid = socket.gethostname(), os.getpid()
    return Process(host, pid, machine_id() or host, pid_namespaces(), _own_start(pid))


def machine_id() -> str:
    """Return the id of the boot of this machine, which its containers share; empty if unknown.

    The variable MESHKIT_MACHINE replaces it, for example if network namespaces play several hosts.
    """
    return os.environ.get("MESHKIT_MACHINE") or _boot_id()


@cache
def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def pid_namespaces() -> str:
    """Return the namespaces in which process ids and starts count; empty if they are unknown."""
    with suppress(OSError):  # before Linux 5.6 there is no time namespace, which shifts the starts
        return " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "time"))
    return ""


def process_stat(pid: int) -> list[str]:
    """Return what Linux reports about a process, from its state on; empty if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # a name cut at 15 bytes may be no text
        return stat.rpartition(b")")[2].decode().split()
    except OSError:
        return []


def _start(pid: int) -> str:
    state, *fields = process_stat(pid) or ["X"]
    return "" if state in "ZX" else fields[18]  # a zombie has ended


_own_start = cache(_start)  # by the pid, as a fork has another start


def state_of(process: Process) -> RankState:
    """Return the state of a process, as far as this machine can know it. Local."""
    here = (machine_id(), pid_namespaces())
    if not all(here) or (process.machine, process.space) != here:
        return RankState.UNKNOWN
    if not process.start or _start(process.pid) != process.start:
        return RankState.ENDED
    return RankState.STOPPED if process_stat(process.pid)[:1] == ["T"] else RankState.BUSY


def have_ended(processes: Iterable[Process]) -> bool:
    """Return whether one of some processes has ended, as far as this machine can know it. Local."""
    here = machine_id()
    neighbors = (process for process in processes if process.machine == here)
    return any(state_of(process) is RankState.ENDED for process in neighbors)


def sight(process: Process, note: str = "") -> Sighting:
    """Return the state of the last process of a rank, and a text on it."""
    return Sighting(state_of(process), f"{process}{note}")


def check_own_process(rank: int, pid: int | None = None) -> None:
    """Check that this process is a rank: no worker of a DataLoader, and the one with the pid.

    A forked process inherits the groups without the threads and the connections behind them.
    """
    worker = get_worker_info()
    if worker is not None:
        raise LaunchError(
            f"this process is a worker of a DataLoader of rank {rank}, and no rank itself.",
            f"It is worker {worker.id} of {worker.num_workers}, pid {os.getpid()}.",
            fix=FIX,
        )
    if pid not in (None, os.getpid()):
        raise LaunchError(
            f"this process is a fork of rank {rank}, and no rank itself.",
            f"It is pid {os.getpid()}; the rank is pid {pid}.",
            fix=FIX,
        )
