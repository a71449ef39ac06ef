"""detect: read from the launcher's variables which rank this process is.

All fields are read from one launcher's variables, see :mod:`meshkit.launch.launchers.table`.
Explicit arguments override variables. Missing fields are derived from variables of the same
launcher.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...core.call import drop_none, quotes_call
from ...core.errors import LaunchError
from ...core.validate import parse_integer
from .completed import without_completed
from .fields import world_from_launcher
from .launcher import Launcher
from .table import HAND_WRITTEN, matching_launchers
from .variables import (
    COMPLETED,
    Env,
    first_set,
    first_value,
    raise_conflict,
    read_int,
    read_text,
)
from .world import MAX_WORLD_SIZE, World

__all__ = ["World", "detect", "detect_world"]

NO_SRUN = "no srun ("
# The number of tasks or nodes of an allocation in which no srun has started a task yet.
ALLOCATED = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES")

ARGUMENT_FIELDS = ("rank", "world_size", "local_rank")
ENDPOINT_FIELDS = ("master_addr", "master_port")
FIELDS = (*ARGUMENT_FIELDS, "local_world_size", "node_rank", "num_nodes")


@quotes_call("detect")
def detect(
    environ: Mapping[str, str] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> World:
    """Return which rank this process is, from its launcher's variables.

    Uses no network, no device and no torch.

    Args:
        environ: the variables to read; None means ``os.environ``.
        rank: the rank of this process, for a launcher that the table lacks; None reads it.
        world_size: the number of ranks of the job; None reads it.
        local_rank: the index of this process on its node; None reads it.
        master_addr: the host of rank 0, where the store of the job is; None reads it.
        master_port: the port of the store, 1 to 65535; None reads it.

    Returns:
        A :class:`World` whose ``device`` and ``backend`` are None. Without a launcher it is
        rank 0 of 1. ``sources`` then names the allocation of several tasks, if there is one.

    Raises:
        LaunchError: if a variable of the launcher is missing or malformed or contradicts another
            one, or an argument is not a valid rank or count.

    Example:
        >>> world = detect({"RANK": "3", "WORLD_SIZE": "4"})
        >>> world.rank, world.launcher, world.sources["rank"], world.sources["local_rank"]
        (3, 'hand-written', 'RANK', 'one node assumed')
    """
    options = drop_none(rank=rank, world_size=world_size, local_rank=local_rank)
    endpoint = drop_none(master_addr=master_addr, master_port=master_port)
    arguments = {**check_arguments(options), **_check_endpoint(endpoint)}
    return detect_world(os.environ if environ is None else environ, arguments)


def check_arguments(options: Mapping[str, object]) -> dict[str, int]:
    """Return ``rank``, ``world_size`` and ``local_rank`` as plain ints, if given."""
    numbers: dict[str, int] = {}
    for name in (name for name in ARGUMENT_FIELDS if name in options):
        number, least = parse_integer(options[name]), 1 if name == "world_size" else 0
        if number is None or number < least:
            fix = f"an int of {least} or more."
            raise LaunchError(f"{name} is {options[name]!r}.", fix=fix)
        if number > MAX_WORLD_SIZE:
            raise LaunchError(f"{name} is {number}.", fix=f"at most {MAX_WORLD_SIZE} ranks.")
        numbers[name] = number
    rank, world_size = numbers.get("rank", 0), numbers.get("world_size")
    if world_size is not None and rank >= world_size:
        fix = f"a rank from 0 to {world_size - 1}."
        raise LaunchError(f"there is no rank {rank} of {world_size}.", fix=fix)
    return numbers


def _check_endpoint(options: Mapping[str, object]) -> dict[str, str | int]:
    """Return ``master_addr`` and ``master_port``, if given, as a host and a port."""
    checked: dict[str, str | int] = {}
    if "master_addr" in options:
        addr = options["master_addr"]
        if not isinstance(addr, str) or not addr.strip():
            raise LaunchError(f"master_addr is {addr!r}.", fix='master_addr="<host of rank 0>".')
        checked["master_addr"] = addr.strip()
    if "master_port" in options:
        port = parse_integer(options["master_port"])
        if port is None or not 1 <= port <= 65535:
            line = f"master_port is {options['master_port']!r}."
            raise LaunchError(line, fix="a port from 1 to 65535: master_port=29500.")
        checked["master_port"] = port
    return checked


def detect_world(env: Env, arguments: Mapping[str, int | str]) -> World:
    """Return the world of :func:`detect`, for arguments that have been checked."""
    env = without_completed(env) if COMPLETED in env else env
    rows = matching_launchers(env)
    if not rows and {"rank", "world_size"} - arguments.keys():
        return _single(env, arguments)
    row = rows[0] if rows else HAND_WRITTEN
    named = {f"argument {name}": str(value) for name, value in arguments.items()}
    env_with_arguments = {**env, **named}
    world = world_from_launcher(
        _overridden(row, env, arguments) if arguments else row, env_with_arguments, others=rows[1:]
    )
    if row is HAND_WRITTEN and not arguments:
        _check_others(world, rows[1:], env)
    return replace(world, sources={**world.sources, **dict.fromkeys(arguments, "argument")})


def _single(env: Env, arguments: Mapping[str, int | str]) -> World:
    """Return the world of a process without launcher; its sources name an allocation around it."""
    named = {name: value for name, value in arguments.items() if name in ARGUMENT_FIELDS}
    if "rank" in named or named.get("world_size", 1) != 1 or named.get("local_rank"):
        passed = " and ".join(f"{name}={value}" for name, value in named.items())
        fix = "pass rank= and world_size= both, or start under a launcher."
        raise LaunchError(f"no launcher was found, and only {passed} was passed.", fix=fix)
    counts = [n for n in ALLOCATED if re.fullmatch(r"0*(?!1$)[1-9][0-9]*", env.get(n, ""))]
    source = f"{NO_SRUN}{counts[0]} = {env[counts[0]]})" if counts else "no launcher"
    sources = {**dict.fromkeys(FIELDS, source), **dict.fromkeys(arguments, "argument")}
    endpoint: dict[str, Any] = {name: arguments.get(name) for name in ENDPOINT_FIELDS}
    return World(0, 1, 0, 1, 0, 1, **endpoint, launcher="single", sources=sources)


def use_master_variables(world: World, env: Env) -> World:
    """Return the world with MASTER_ADDR and MASTER_PORT in place of its launcher's endpoint."""
    variables = {
        "master_addr": read_text(world.launcher, ("MASTER_ADDR",), env),
        "master_port": read_int(
            world.launcher, ("MASTER_PORT",), env, least=1, most=65535, optional=True
        ),
    }
    fields = {name: field for name, field in variables.items() if field is not None}
    values: dict[str, Any] = {name: value for name, (value, _) in fields.items()}
    sources = {**world.sources, **{name: source for name, (_, source) in fields.items()}}
    return replace(world, **values, sources=sources)


def allocation_without_srun(world: World) -> str | None:
    """Return the variable of an allocation of several tasks in which this process is alone."""
    source = world.sources.get("world_size", "")
    variable = source.removeprefix(NO_SRUN).removesuffix(")")
    return variable if world.launcher == "single" and variable != source else None


def _overridden(row: Launcher, env: Env, arguments: Mapping[str, int | str]) -> Launcher:
    """Return the row without the variables that arguments override or make invalid."""
    node_fields = ("local_rank", "local_world_size", "tasks_per_node", "node_rank", "num_nodes")
    new = {
        name for name in arguments if first_value(getattr(row, name), env) != str(arguments[name])
    }
    # with another rank, the variables about the node describe another process
    ignored = node_fields if "rank" in new else ("num_nodes",) if "world_size" in new else ()
    overrides = {name: (f"argument {name}",) for name in arguments}
    changes: dict[str, Any] = {**dict.fromkeys(ignored, ()), **overrides}
    return row._replace(**changes, by_node=row.by_node or "rank" in new)


def _check_others(world: World, others: list[Launcher], env: Env) -> None:
    """Check RANK against the rank that another launcher sets for a job of the same size.

    If the sizes differ, one launcher was started inside the other, which is normal.
    """
    for row in others:
        rank, size = first_set(row.rank, env), first_set(row.world_size, env)
        if rank and size and env[size] == str(world.world_size) and env[rank] != str(world.rank):
            raise_conflict(f"hand-written and {row.name}", env, "RANK", rank, f"is not {rank}")
