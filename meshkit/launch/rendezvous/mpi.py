"""Broadcast the address of the store through mpi4py, if mpirun starts a job without one."""

from __future__ import annotations

import atexit
import json
import sys
import time
from dataclasses import replace
from socket import gethostname
from types import ModuleType

import torch.distributed as dist

from ...core.errors import LaunchError, RankTimeoutError
from ..store.deadline import Deadline
from ..world import World

MESSAGE_BYTES = 512  # a host name has 253 at most
SOURCE = "broadcast by mpi4py"


def address_by_mpi(world: World, deadline: Deadline) -> tuple[World, dist.Store | None]:
    """Return the world with the address of a store that rank 0 hosts on a free port. Collective.

    Rank 0 holds the port from its choice to its use, by the store that is returned too. The import
    of mpi4py starts MPI, which waits for all ranks without a deadline.
    """
    mpi = _import_mpi(world)
    holder = _host_store(world, deadline)
    host = "127.0.0.1" if world.local_world_size == world.world_size else gethostname()
    message = bytearray(MESSAGE_BYTES)
    if holder is not None:
        text = json.dumps([host, holder.port]).encode()
        message[: len(text)] = text
    request = mpi.COMM_WORLD.Ibcast([message, mpi.BYTE], root=0)
    while not request.Test():
        if deadline.expired:
            raise _no_message_error(world, deadline)
        time.sleep(0.002)
    _finalize_at_exit(mpi)
    addr, port = json.loads(message.rstrip(b"\0").decode())
    sources = {**world.sources, "master_addr": SOURCE, "master_port": SOURCE}
    return replace(world, master_addr=str(addr), master_port=int(port), sources=sources), holder


def _finalize_at_exit(mpi: ModuleType) -> None:
    """Finalize MPI when this process ends, if mpi4py does not."""
    import mpi4py

    if mpi4py.rc.finalize is False:
        atexit.register(lambda: None if mpi.Is_finalized() else mpi.Finalize())


def _host_store(world: World, deadline: Deadline) -> dist.TCPStore | None:
    """Return a store on a free port, on rank 0 only."""
    if world.rank:
        return None
    return dist.TCPStore(
        "127.0.0.1",
        0,
        is_master=True,
        timeout=deadline.timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )


def _import_mpi(world: World) -> ModuleType:
    """Return mpi4py's MPI, if it is that of the launcher."""
    try:
        import mpi4py

        # MPI waits at its end for pending messages: it must not after a failure.
        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.finalize = False
        from mpi4py import MPI as mpi  # importing it starts MPI
    except (ImportError, RuntimeError) as error:  # not installed, or it finds no MPI library
        raise unknown_address_error(
            world, f"mpi4py: {str(error).partition(chr(10))[0]}."
        ) from error
    comm = mpi.COMM_WORLD
    if (comm.rank, comm.size) == (world.rank, world.world_size):
        return mpi
    name = str(mpi.Get_library_version()).partition(",")[0].strip("\0 \n")
    evidence = f"mpi4py uses {name}, in which this is rank {comm.rank} of {comm.size}; "
    evidence += "MPI4PY_MPIABI=mpich or openmpi selects another MPI."
    raise unknown_address_error(world, evidence)


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


def _no_message_error(world: World, deadline: Deadline) -> RankTimeoutError:
    return RankTimeoutError(
        f"rank 0 did not send rank {world.rank} the address of the store within {deadline}.",
        "It sends the address through mpi4py, in its own init().",
        fix="look at the log of rank 0 first.",
        missing_ranks=(0,),
    )
