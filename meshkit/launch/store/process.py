"""The identity of a process: its host, its pid, and the moment of its start."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """Host and pid of a process, as errors show them."""

    host: str
    pid: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of this process."""
        return cls(socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


def process_start(pid: int) -> str:
    """Return text that no other process of this host shares; empty if the process has ended.

    The text holds the boot, the pid namespace, and the start of the process in kernel ticks.
    """
    state, *fields = process_stat(pid) or ["X"]
    return "" if state in "ZX" else f"{pid_namespace()}{fields[18]}"  # a zombie has ended


def process_stat(pid: int) -> list[str]:
    """Return what Linux reports about a process, from its state on; empty if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def pid_namespace() -> str:
    """Return the boot and the namespace in which pids count, as two hosts may share a name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} "
    except OSError:
        return "unknown "
