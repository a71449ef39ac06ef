"""World: the rank of a process in its job, and the environment variables that pass it on.

DeepSpeed, the Gaudi bridge and torch's ``env://`` read RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR
and others, which srun, mpirun and explicit arguments do not set. ``init`` adds the missing ones,
and names them with their values in MESHKIT_COMPLETED. ``detect`` ignores these variables, so a
program that this process starts still finds its own launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from ..errors import LaunchError, SpecError
from .endpoint import FIRST_PORT, NUM_PORTS, Env, as_number
from .launchers import HAND_WRITTEN, LAUNCHERS, SPAWN, contradicting_variables, matching_launchers

if TYPE_CHECKING:
    import torch

MAX_WORLD_SIZE = 2**21  # ranks; messages and memory grow with the ranks that are missing
LOOPBACK_HOST = "127.0.0.1"
MAX_SHOWN = 100  # characters of a malformed value in an error
COMPLETED = "MESHKIT_COMPLETED"  # [[RANK, WORLD_SIZE], the variables that init has added]
COMPLETE = LAUNCHERS[: LAUNCHERS.index(SPAWN) + 1]  # these set all variables themselves
NODE_FIELDS = ("local_rank", "local_world_size", "node_rank", "num_nodes")
# Field name to the variable that passes it to a child process.
EXPORTED = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}


@dataclass(frozen=True)
class World:
    """The rank of this process and its job.

    Attributes:
        rank: the global rank, 0 to world_size - 1.
        world_size: the number of ranks of the job.
        local_rank: the index of this rank on its node. This field and the next three are None
            if the launcher does not state them. ``init`` then takes them from the machines of the
            ranks.
        local_world_size: the number of ranks on its node; nodes may have different ones.
        node_rank: the index of its node.
        num_nodes: the number of nodes.
        master_addr: the host of the rendezvous store, or None.
        master_port: the port of the store, or None.
        launcher: the matching row of the table: ``"torchrun"``, ``"slurm"``, ``"single"``...
        init_method: the rendezvous URL, if it is not an address: ``"file://..."``.
        device: a ``torch.device``; None until ``init``.
        backend: the backend of collectives, ``"gloo"`` or ``"nccl"``; None until ``init``.
        sources: field name to the source of its value: a variable, ``"argument"``, ...
        allocation: the variable that says that the job is larger than the ranks that were started:
            ``"SLURM_NTASKS = 4"``, ``"NNODES = 2"``; None if none says so.

    Example:
        >>> from meshkit import detect
        >>> world = detect({"RANK": "3", "WORLD_SIZE": "8"})
        >>> world.rank, world.world_size, world.launcher, world.sources["rank"]
        (3, 8, 'hand-written', 'RANK')
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    node_rank: int | None
    num_nodes: int | None
    master_addr: str | None
    master_port: int | None
    launcher: str
    init_method: str | None = None
    device: torch.device | None = None
    backend: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    allocation: str | None = field(default=None, repr=False)

    def __iter__(self) -> NoReturn:
        """Raise SpecError: a world is no tuple, unlike what other libraries return."""
        raise SpecError(
            "a World is no tuple, so it cannot be unpacked.",
            "Its fields have names; world = meshkit.init() returns it.",
            fix="world.rank, world.world_size, world.local_rank.",
        )

    @property
    def size_evidence(self) -> str:
        """The source of the world size as errors print it: ``"WORLD_SIZE = 6 (torchrun)"``."""
        source = self.sources.get("world_size", "world_size")
        if self.launcher == "single" and source != "argument":
            return f"there is 1 process and {source}"
        return f"{source} = {self.world_size} ({self.launcher})"

    @property
    def started(self) -> str:
        """The ranks that were started, as texts about ``allocation`` begin."""
        ranks = f"there are {self.world_size} ranks"
        return "this is a single process" if self.world_size == 1 else ranks

    def export(self, environ: MutableMapping[str, str] | None = None) -> dict[str, str]:
        """Set the variables from which a child process detects this same world. Local.

        Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT if their
        field is not None. Removes variables that contradict the world: those of another node, and
        those of a launcher that give another rank.

        Args:
            environ: the mapping to change; None means ``os.environ``.

        Returns:
            The variables that were set.

        Example:
            >>> from meshkit import detect
            >>> detect({}, rank=1, world_size=2, master_addr="node1").export({})["MASTER_ADDR"]
            'node1'
        """
        values = {name: getattr(self, field) for field, name in EXPORTED.items()}
        exported = {name: str(value) for name, value in values.items() if value is not None}
        target = os.environ if environ is None else environ
        contradicting = contradicting_variables(target, self.rank, self.world_size)
        contradicting |= {
            name
            for field in NODE_FIELDS
            for name in getattr(HAND_WRITTEN, field)
            if as_number(target.get(name)) != getattr(self, field)
        }
        for name in contradicting | {COMPLETED}:
            target.pop(name, None)
        target.update(exported)
        return exported


def complete_environment(
    world: World, host: str | None, port: int | None, environ: MutableMapping[str, str]
) -> dict[str, str]:
    """Set the variables of a world that are missing, and return those that were set. Local.

    On one node without a TCP store the port is a free one, or derived from the file of the store.
    """
    if not (host and port) and world.local_world_size == world.world_size:
        derived = FIRST_PORT + zlib.crc32(str(world.init_method).encode()) % NUM_PORTS
        host = host or LOOPBACK_HOST
        port = port or (free_port() if world.world_size == 1 else derived)
    values = {name: getattr(world, field) for field, name in EXPORTED.items()}
    values |= {"MASTER_ADDR": host, "MASTER_PORT": port}
    added = {name: str(v) for name, v in values.items() if v is not None and name not in environ}
    if added:
        environ.update(added)
        identity = [environ["RANK"], environ["WORLD_SIZE"]]
        added[COMPLETED] = environ[COMPLETED] = json.dumps([identity, added])
    return added


def restore_environment(completed: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Remove the variables that ``init`` added, unless they have changed since. Local."""
    for name, value in completed.items():
        if environ.get(name) == value:
            del environ[name]


def follow_recovery(
    world: World, completed: Mapping[str, str], environ: MutableMapping[str, str]
) -> dict[str, str]:
    """Set RANK and WORLD_SIZE to those of a recovered world; return what ``init`` has added."""
    new = {"RANK": str(world.rank), "WORLD_SIZE": str(world.world_size)}
    if new.keys() <= environ.keys():
        environ.update(new)
        environ.pop("LOCAL_WORLD_SIZE", None)
    return {name: new.get(name, value) for name, value in completed.items()}


def without_completed(env: Env) -> Env:
    """Return the environment without the variables that an ``init`` added.

    In a process that this one has started, torchrun or the user may have set another rank since.
    Then only the place of this process on its node is removed, unless it was set too.
    """
    if COMPLETED not in env or any(row in COMPLETE for row in matching_launchers(env)):
        return env
    identity, added = _read_completed(env[COMPLETED])
    hidden = {name for name, value in added.items() if env.get(name) == value}
    own = [env.get("RANK"), env.get("WORLD_SIZE")]
    if [*map(as_number, own)] != [*map(as_number, identity)]:
        hidden &= {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    return {name: value for name, value in env.items() if name not in hidden | {COMPLETED}}


def _read_completed(text: str) -> tuple[list[str], dict[str, str]]:
    """Return the rank and size of the process that has added variables, and these variables."""
    try:
        identity, added = json.loads(text)
        if isinstance(identity, list) and isinstance(added, dict):
            return identity, added
    except (ValueError, TypeError, RecursionError):
        pass
    line = f"{COMPLETED}={text[:MAX_SHOWN]!r} is not what init has written."
    raise LaunchError(line, fix=f"unset {COMPLETED}.", variables={COMPLETED: text})


def free_port() -> int:
    """Return a port of this machine that is free at this moment.

    The kernel gives it to no connection, which could take it before its use. If 20 such ports are
    taken, the kernel chooses.
    """
    ports = random.SystemRandom().choices(range(FIRST_PORT, FIRST_PORT + NUM_PORTS), k=20)
    for port in ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((LOOPBACK_HOST, port))
            return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK_HOST, 0))
        return int(probe.getsockname()[1])
