"""Where mpirun starts a job and nobody says where ranks meet: rank 0 tells them, through mpi4py."""

from __future__ import annotations

import atexit
import json
import sys
import time
from dataclasses import replace
from datetime import timedelta
from socket import gethostname
from types import ModuleType

import torch.distributed as dist

from ...core.errors import LaunchError, RankTimeoutError
from ..launchers.table import LAUNCHERS
from ..launchers.world import World

BY_MPI = {row.name for row in LAUNCHERS if row.by_mpi}
LENGTH = 512  # bytes of the message: a host name has 253 at most
HOW = "broadcast by mpi4py"


def told_by_mpi(world: World, wait: timedelta, began: float) -> tuple[World, dist.Store | None]:
    """The world with the address of a store that rank 0 hosts on a free port. Collective.

    The port is never let go between its choice and its use: on rank 0 the store that holds it is
    returned too. mpi4py starts MPI when it is imported, which itself waits for all ranks without
    a deadline.

    Args:
        world: who this process is.
        wait: how long to wait for rank 0's message.
        began: when that time began, on the monotonic clock.

    Raises:
        LaunchError: where mpi4py is not there, or speaks another MPI than that of the launcher.
        RankTimeoutError: where rank 0 did not send in time.
    """
    mpi = _mpi(world)
    holder = _hosted(world, wait)
    host = "127.0.0.1" if world.local_world_size == world.world_size else gethostname()
    message = bytearray(LENGTH)
    if holder is not None:
        text = json.dumps([host, holder.port]).encode()
        message[: len(text)] = text
    request = mpi.COMM_WORLD.Ibcast([message, mpi.BYTE], root=0)
    while not request.Test():
        if time.monotonic() > began + wait.total_seconds():
            raise _silent(world, wait)
        time.sleep(0.002)
    _end_with_mpi(mpi)
    addr, port = json.loads(message.rstrip(b"\0").decode())
    sources = {**world.sources, "master_addr": HOW, "master_port": HOW}
    return replace(world, master_addr=str(addr), master_port=int(port), sources=sources), holder


def _end_with_mpi(mpi: ModuleType) -> None:
    """End MPI when this process ends, where mpi4py was told not to."""
    import mpi4py

    if mpi4py.rc.finalize is False:
        atexit.register(lambda: None if mpi.Is_finalized() else mpi.Finalize())


def _hosted(world: World, wait: timedelta) -> dist.TCPStore | None:
    """On rank 0 a store on a free port."""
    if world.rank:
        return None
    return dist.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=wait, wait_for_workers=False, multi_tenant=True
    )


def _mpi(world: World) -> ModuleType:
    """mpi4py's MPI, where it is that of the launcher."""
    try:
        import mpi4py

        # At its end MPI waits for the messages that are under way: it must not after a failure.
        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.finalize = False
        from mpi4py import MPI as mpi  # importing it starts MPI
    except (ImportError, RuntimeError) as error:  # not installed, or it finds no MPI library
        raise nowhere(world, f"mpi4py: {str(error).partition(chr(10))[0]}.") from error
    comm = mpi.COMM_WORLD
    if (comm.rank, comm.size) == (world.rank, world.world_size):
        return mpi
    name = str(mpi.Get_library_version()).partition(",")[0].strip("\0 \n")
    seen = f"mpi4py speaks {name}, for which this is rank {comm.rank} of {comm.size}; "
    seen += "MPI4PY_MPIABI=mpich or openmpi chooses."
    raise nowhere(world, seen)


def nowhere(world: World, *evidence: str) -> LaunchError:
    """The error of a job that does not know where its ranks meet."""
    variables = {"MASTER_ADDR": world.master_addr, "MASTER_PORT": world.master_port}
    return LaunchError(
        f"rank {world.rank} of {world.world_size} does not know where to meet the others.",
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


def _silent(world: World, wait: timedelta) -> RankTimeoutError:
    return RankTimeoutError(
        f"rank 0 did not tell rank {world.rank} where to meet within {wait.total_seconds():g} s.",
        "It tells through mpi4py, in its own init().",
        fix="look at the log of rank 0 first.",
        missing_ranks=(0,),
    )
