"""Variables that ``init`` adds to the environment, for libraries that read their rank there.

DeepSpeed, the Gaudi bridge and torch's ``env://`` read RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR
and others. srun, mpirun and explicit arguments set none of them. ``init`` adds the missing ones,
and names them with their values in one variable more, MESHKIT_COMPLETED. ``detect`` ignores them
there, so a program that this process starts still finds its own launcher.
"""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import Mapping, MutableMapping

from .endpoint import FIRST_PORT, NUM_PORTS
from .table import LAUNCHERS, SPAWN, matching_launchers
from .variables import COMPLETED, Env
from .world import EXPORTED, World

LOOPBACK_HOST = "127.0.0.1"
IDENTITY = ("RANK", "WORLD_SIZE")
COMPLETE = LAUNCHERS[: LAUNCHERS.index(SPAWN) + 1]  # these set all variables themselves


def complete_environment(
    world: World, host: str | None, port: int | None, environ: MutableMapping[str, str]
) -> dict[str, str]:
    """Set the variables of a world that are missing, and return those that were set. Local."""
    values = {name: getattr(world, field) for field, name in EXPORTED.items()}
    values |= dict(zip(("MASTER_ADDR", "MASTER_PORT"), _endpoint(world, host, port), strict=True))
    missing = {
        name: str(value)
        for name, value in values.items()
        if value is not None and name not in environ
    }
    if missing:
        environ.update(missing)
        identity = [environ[name] for name in IDENTITY]
        missing[COMPLETED] = environ[COMPLETED] = json.dumps([identity, missing])
    return missing


def restore_environment(completed: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Remove the variables that ``init`` added, unless they have changed since. Local."""
    for name, value in completed.items():
        if environ.get(name) == value:
            del environ[name]


def without_completed(env: Env) -> Env:
    """Return the environment without the variables that an ``init`` added.

    In a process that this one has started, torchrun or the user may have set another rank since.
    Then only the place of this process on its node is removed, unless it was set too.
    """
    if COMPLETED not in env or any(row in COMPLETE for row in matching_launchers(env)):
        return env
    identity, added = json.loads(env[COMPLETED])
    unchanged = {name for name, value in added.items() if env.get(name) == value}
    if [env.get(name) for name in IDENTITY] != identity:
        unchanged &= {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    hidden = {COMPLETED, *unchanged}
    return {name: value for name, value in env.items() if name not in hidden}


def _endpoint(world: World, host: str | None, port: int | None) -> tuple[str | None, int | None]:
    """Return the address of rank 0; on one node without a TCP store, a free or a derived port."""
    if (host and port) or world.local_world_size != world.world_size:
        return host, port
    if world.world_size == 1:
        return host or LOOPBACK_HOST, port or free_port()
    derived = FIRST_PORT + zlib.crc32(str(world.init_method).encode()) % NUM_PORTS
    return host or LOOPBACK_HOST, port or derived


def free_port() -> int:
    """Return a port of this machine that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK_HOST, 0))
        return int(probe.getsockname()[1])
