"""World: who this process is in the job, read from what its launcher set.

One launcher answers for all fields. The launchers are rows of one table; the first row that
recognises the environment answers::

    torchrun       TORCHELASTIC_RUN_ID     set by torchrun on every worker
    spawn          MESHKIT_SPAWN           set by meshkit.spawn on every child
    hand-written   RANK or WORLD_SIZE      set by whoever started the process
    single         nothing                 one process alone
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..core.errors import LaunchError, told

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class World:
    """Who this process is.

    Attributes:
        rank: the global rank, 0 to world_size - 1.
        world_size: how many ranks the job has.
        local_rank: the index of this rank on its node.
        local_world_size: how many ranks its node has; None where the launcher does not say.
        node_rank: the index of its node; None where the launcher does not say.
        num_nodes: how many nodes there are; None where the launcher does not say.
        master_addr: the host where ranks meet, or None.
        master_port: the port there, or None.
        launcher: the row of the table that answered: ``"torchrun"``, ``"single"``, ...
        init_method: where ranks meet, as a URL, where that is not an address: ``"file://..."``.
        device: a ``torch.device``; None until ``init``.
        backend: what collectives run on, ``"gloo"`` or ``"nccl"``; None until ``init``.
        sources: field name to where its value came from: a variable, ``"argument"``, ...
    """

    rank: int
    world_size: int
    local_rank: int
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

    @property
    def size_evidence(self) -> str:
        """Where the world size came from, as errors print it.

        Example:
            >>> detect({"RANK": "0", "WORLD_SIZE": "6"}).size_evidence
            'WORLD_SIZE = 6 (hand-written)'
        """
        if self.launcher == "single":
            return "there is 1 process and no launcher"
        return f"{self.sources['world_size']} = {self.world_size} ({self.launcher})"


@dataclass(frozen=True)
class Launcher:
    """A row of the table: the variables in which a launcher says who a process is.

    ``known_by`` lists variables of which one is enough to recognise it; the others name the
    variable of each field, or None where the launcher does not say.
    """

    name: str
    known_by: tuple[str, ...]
    rank: str = "RANK"
    world_size: str = "WORLD_SIZE"
    local_rank: str = "LOCAL_RANK"
    local_world_size: str = "LOCAL_WORLD_SIZE"
    node_rank: str | None = None
    num_nodes: str | None = None
    master_addr: str | None = None
    master_port: str | None = None
    init_method: str | None = None


MASTER = {"master_addr": "MASTER_ADDR", "master_port": "MASTER_PORT"}
NODES = {"node_rank": "GROUP_RANK", "num_nodes": "GROUP_WORLD_SIZE"}

LAUNCHERS = (
    Launcher("torchrun", ("TORCHELASTIC_RUN_ID",), **NODES, **MASTER),
    Launcher("spawn", ("MESHKIT_SPAWN",), init_method="MESHKIT_SPAWN"),
    Launcher("hand-written", ("RANK", "WORLD_SIZE"), **MASTER),
)

WHO = {"rank", "world_size"}
_FIELDS = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
_NOBODY = dict.fromkeys(_FIELDS, "no launcher")
ALONE = World(0, 1, 0, 1, 0, 1, None, None, "single", sources=_NOBODY)


def detect(environ: Mapping[str, str] | None = None) -> World:
    """Who this process is, from what its launcher set. Pure: no network, no device, no torch.

    Args:
        environ: the variables to read; None means ``os.environ``.

    Returns:
        A :class:`World` whose ``device`` and ``backend`` are None. Without any launcher it is
        rank 0 of 1.

    Raises:
        LaunchError: where a variable that the launcher sets is missing, malformed or contradicts
            another one.

    Example:
        >>> world = detect({"RANK": "3", "WORLD_SIZE": "4"})
        >>> world.rank, world.launcher, world.sources["rank"], world.sources["local_rank"]
        (3, 'hand-written', 'RANK', 'one node assumed')
    """
    return identify(os.environ if environ is None else environ, {})


def identify(env: Mapping[str, str], arguments: Mapping[str, int]) -> World:
    """:func:`detect`, where explicit arguments win over the variables of the same field.

    Args:
        env: the variables to read.
        arguments: field name to value, from ``rank``, ``world_size`` and ``local_rank``. Where
            they say who the process is, what the variables say of its node is not mixed in.
    """
    row = next((row for row in LAUNCHERS if any(name in env for name in row.known_by)), None)
    if row is None and not arguments:
        return ALONE
    row = row or LAUNCHERS[-1]
    if row.known_by and not any(n in env for n in row.known_by) and len(WHO & arguments.keys()) < 2:
        passed = " and ".join(f"{name}={value}" for name, value in arguments.items())
        fix = "pass rank= and world_size= both, or start under a launcher."
        raise LaunchError(told(f"no launcher is here, and only {passed} was passed.", fix=fix))
    named = {getattr(row, name): str(value) for name, value in arguments.items()}
    node = (row.local_rank, row.local_world_size, row.node_rank, row.num_nodes)
    hidden = node if WHO & arguments.keys() else ()
    env = {name: value for name, value in env.items() if name not in hidden} | named
    world = _checked(_read(row, env), row, env)
    return replace(world, sources={**world.sources, **dict.fromkeys(arguments, "argument")})


def _read(row: Launcher, env: Mapping[str, str]) -> World:
    """The fields of one row; what it leaves open is derived from its own answers only."""
    said: dict[str, int | None] = {
        "rank": _number(row, row.rank, env),
        "world_size": _number(row, row.world_size, env, least=1),
        "local_rank": _number(row, row.local_rank, env, optional=True),
        "local_world_size": _number(row, row.local_world_size, env, least=1, optional=True),
        "node_rank": _number(row, row.node_rank, env, optional=True),
        "num_nodes": _number(row, row.num_nodes, env, least=1, optional=True),
        "master_port": _number(row, row.master_port, env, least=1, most=65535, optional=True),
    }
    words = {
        "master_addr": _word(row, row.master_addr, env),
        "init_method": _word(row, row.init_method, env),
    }
    values = {**said, **words}
    sources = {name: str(getattr(row, name)) for name, value in values.items() if value is not None}
    for name, (value, source) in _derived(said).items():
        values[name], sources[name] = value, source
    return World(launcher=row.name, sources=sources, **values)  # type: ignore[arg-type]


def _derived(said: Mapping[str, int | None]) -> dict[str, tuple[int, str]]:
    """What the variables leave open but imply, with how."""
    rank, world_size = said["rank"] or 0, said["world_size"] or 1
    local_rank, local_size = said["local_rank"], said["local_world_size"]
    found: dict[str, tuple[int, str]] = {}
    if local_size is None and local_rank is None:
        local_size = world_size
        found["local_world_size"] = (world_size, "one node assumed")
    if local_rank is None and local_size is not None:
        local_rank = rank % local_size
        how = "one node assumed" if "local_world_size" in found else "rank % local_world_size"
        found["local_rank"] = (local_rank, how)
    if local_size and world_size % local_size == 0 and rank % local_size == local_rank:
        found["node_rank"] = (rank // local_size, "rank // local_world_size")
        found["num_nodes"] = (world_size // local_size, "world_size // local_world_size")
    return {name: value for name, value in found.items() if said[name] is None}


def _number(
    row: Launcher,
    name: str | None,
    env: Mapping[str, str],
    *,
    least: int = 0,
    most: int | None = None,
    optional: bool = False,
) -> int | None:
    """A variable as an int from ``least`` to ``most``; None where it may be, and is, not set."""
    if name is None or (optional and name not in env):
        return None
    text = env.get(name)
    number = int(text) if text is not None and text.isascii() and text.strip().isdigit() else -1
    if number >= least and (most is None or number <= most):
        return number
    span = f"{least} or more" if most is None else f"{least} to {most}"
    line = f"{name} is not set" if text is None else f"{name}={text!r} is not {span}"
    message = told(
        f"the launcher {row.name} was recognised, but {line}.",
        f"It says who a process is in {row.rank} and {row.world_size}; "
        f"{', '.join(n for n in row.known_by if n in env)} is set.",
        fix=f"export {name}={least if most is None else 29500}, or the number that belongs there.",
    )
    raise LaunchError(message, variables={name: text})


def _word(row: Launcher, name: str | None, env: Mapping[str, str]) -> str | None:
    if name is None or name not in env:
        return None
    if env[name].strip():
        return env[name].strip()
    text = told(
        f"the launcher {row.name} was recognised, but {name} is empty.",
        fix=f"export {name}=<value>, or unset {name}.",
    )
    raise LaunchError(text, variables={name: env[name]})


def _checked(world: World, row: Launcher, env: Mapping[str, str]) -> World:
    """Refuse an index that is outside its count, and a node larger than the job."""
    pairs = (
        (row.rank, world.rank, row.world_size, world.world_size),
        (row.local_rank, world.local_rank, row.local_world_size, world.local_world_size),
        (row.local_rank, world.local_rank, row.world_size, world.world_size),
        (row.node_rank, world.node_rank, row.num_nodes, world.num_nodes),
    )
    for index_name, index, size_name, size in pairs:
        if index is not None and size is not None and index >= size:
            _refuse(row, env, str(index_name), str(size_name), f"must be below {size_name}")
    if (world.local_world_size or 1) > world.world_size:
        _refuse(row, env, row.local_world_size, row.world_size, f"is more than {row.world_size}")
    return world


def _refuse(row: Launcher, env: Mapping[str, str], first: str, second: str, fault: str) -> None:
    values = {name: env.get(name) for name in (first, second)}
    text = told(
        f"{first}={values[first]} {fault}={values[second]}.",
        f"Both were read for the launcher {row.name}.",
        fix=f"export {first} and {second} so that they agree.",
    )
    raise LaunchError(text, variables=values)
