"""Find a store for ranks that mpirun starts without an address.

On one node the store is a file, so no rank has to import MPI. The process id and the start time of
the launcher name the file, so no other job has it. The launcher is the nearest ancestor of a rank
whose environment lacks the variable of the rank. All ranks find the same ancestor, also through
wrappers. On several nodes mpi4py broadcasts the address of a store that rank 0 hosts.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from types import ModuleType

import torch.distributed as dist

from ..errors import RankTimeoutError
from .open_store import unknown_address_error
from .process import process_stat
from .store import address
from .times import Deadline
from .world import World

MESSAGE_BYTES = 512  # a host name has 253 at most
SOURCE = "broadcast by mpi4py"
FILE_SOURCE = "one node: a file named after the launcher's process"
MAX_ANCESTORS = 64


def with_address(world: World, deadline: Deadline) -> tuple[World, dist.Store | None]:
    """Return the world of a rank of mpirun with a store, and an object that holds its port."""
    if world.init_method or None not in address(world) or world.world_size == 1:
        return world, None
    if on_one_node := store_of_one_node(world):
        return on_one_node, None
    mpi = _import_mpi(world)  # it starts MPI, which waits for all ranks without a deadline
    holder = None
    if world.rank == 0:  # it holds a free port from its choice to its use
        options = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
        holder = dist.TCPStore("127.0.0.1", 0, timeout=deadline.timeout, **options)
    host = "127.0.0.1" if world.local_world_size == world.world_size else gethostname()
    message = bytearray(MESSAGE_BYTES)
    if holder is not None:
        text = json.dumps([host, holder.port]).encode()
        message[: len(text)] = text
    request = mpi.COMM_WORLD.Ibcast([message, mpi.BYTE], root=0)
    while not request.Test():
        if deadline.expired:
            raise RankTimeoutError(
                f"rank 0 did not send rank {world.rank} the address of the store within "
                f"{deadline}.",
                "It sends the address through mpi4py, in its own init().",
                fix="look at the log of rank 0 first.",
                missing_ranks=(0,),
            )
        time.sleep(0.002)
    if sys.modules["mpi4py"].rc.finalize is False:
        atexit.register(lambda: None if mpi.Is_finalized() else mpi.Finalize())
    addr, port = json.loads(message.rstrip(b"\0").decode())
    sources = {**world.sources, "master_addr": SOURCE, "master_port": SOURCE}
    return replace(world, master_addr=str(addr), master_port=int(port), sources=sources), holder


def _import_mpi(world: World) -> ModuleType:
    """Return mpi4py's MPI, if it is that of the launcher."""
    try:
        import mpi4py

        # MPI waits at its end for pending messages: it must not after a failure.
        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.finalize = False
        from mpi4py import MPI as mpi  # importing it starts MPI
    except (ImportError, RuntimeError) as error:  # not installed, or it finds no MPI library
        line = f"mpi4py: {str(error).partition(chr(10))[0]}."
        raise unknown_address_error(world, line) from error
    comm = mpi.COMM_WORLD
    if (comm.rank, comm.size) == (world.rank, world.world_size):
        return mpi
    name = str(mpi.Get_library_version()).partition(",")[0].strip("\0 \n")
    evidence = f"mpi4py uses {name}, in which this is rank {comm.rank} of {comm.size}; "
    evidence += "MPI4PY_MPIABI=mpich or openmpi selects another MPI."
    raise unknown_address_error(world, evidence)


def store_of_one_node(world: World) -> World | None:
    """Return the world with a file as its store; None if ranks or the launcher are elsewhere."""
    variable, launcher = world.sources["rank"], None
    if world.local_world_size == world.world_size and variable in os.environ:
        launcher = _launcher_process(variable)
    folder = None if launcher is None else _private_folder()
    if folder is None:
        return None
    sources = {**world.sources, "init_method": FILE_SOURCE}
    return replace(world, init_method=f"file://{folder}/{launcher}", sources=sources)


def _launcher_process(variable: str) -> str | None:
    """Return the id and the start time of the nearest ancestor without a variable."""
    stat = process_stat(os.getpid())
    try:
        for _ in range(MAX_ANCESTORS):
            pid = int(stat[1])  # the parent
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            stat = process_stat(pid)
            if not any(line.startswith(f"{variable}=".encode()) for line in variables):
                return f"{pid}-{stat[19]}"
    except (OSError, IndexError):  # no /proc, another user's process, or it has ended
        return None
    return None


def _private_folder() -> Path | None:
    """Return a folder for temporary files that only this user can write; None if it is foreign."""
    folder = Path(tempfile.gettempdir(), f"meshkit-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_own = folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid()
    return folder if is_own and not status.st_mode & 0o022 else None
