"""detect: who this process is in the job, read from what its launcher set.

One launcher answers for all fields, see :mod:`meshkit.launch.launchers.table`. Explicit arguments win
over variables; what is left open is derived from that launcher's own answers only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...core.call import Call, given
from ...core.errors import LaunchError, told
from ...core.integers import integer
from .table import HAND_WRITTEN, Launcher, recognised
from .fields import read
from .variables import Env, disagree, number, present, word
from .world import World

__all__ = ["World", "detect", "identify"]

NO_SRUN = "no srun ("
# How many tasks an allocation is meant for, where no srun has started them yet.
ALLOCATED = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES")

WHO = ("rank", "world_size", "local_rank")
_FIELDS = (*WHO, "local_world_size", "node_rank", "num_nodes")


def detect(
    environ: Mapping[str, str] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
) -> World:
    """Who this process is, from what its launcher set. No network, no device, no torch.

    Args:
        environ: the variables to read; None means ``os.environ``.
        rank: this process' rank, for a launcher of your own; None asks the variables.
        world_size: how many ranks the job has; None asks the variables.
        local_rank: this process' index on its node; None asks the variables.

    Returns:
        A :class:`World` whose ``device`` and ``backend`` are None. Without any launcher it is
        rank 0 of 1; ``sources`` then says so where an allocation of several tasks is around it.

    Raises:
        LaunchError: where a variable that the launcher sets is missing, malformed or contradicts
            another one, or an argument is no rank or count.

    Example:
        >>> world = detect({"RANK": "3", "WORLD_SIZE": "4"})
        >>> world.rank, world.launcher, world.sources["rank"], world.sources["local_rank"]
        (3, 'hand-written', 'RANK', 'one node assumed')
    """
    asked = given(rank=rank, world_size=world_size, local_rank=local_rank)
    call = Call("detect", kwargs=asked)
    arguments = check_arguments(call, asked)
    return identify(os.environ if environ is None else environ, arguments)


def check_arguments(call: Call, asked: Mapping[str, object]) -> dict[str, int]:
    """Those of ``rank``, ``world_size`` and ``local_rank`` that were given, as plain ints.

    Raises:
        LaunchError: where one is no int, or too small, or ``rank`` is not below ``world_size``.
    """
    numbers: dict[str, int] = {}
    for name in (name for name in WHO if name in asked):
        found, least = integer(asked[name]), 1 if name == "world_size" else 0
        if found is None or found < least:
            fix = f"an int of {least} or more."
            raise LaunchError(told(f"{call}: {name} is {asked[name]!r}.", fix=fix))
        numbers[name] = found
    rank, world_size = numbers.get("rank", 0), numbers.get("world_size")
    if world_size is not None and rank >= world_size:
        fix = f"a rank from 0 to {world_size - 1}."
        raise LaunchError(told(f"{call}: there is no rank {rank} of {world_size}.", fix=fix))
    return numbers


def identify(env: Env, arguments: Mapping[str, int]) -> World:
    """:func:`detect`, with arguments that have been checked.

    Args:
        env: the variables to read.
        arguments: field name to value, from ``rank``, ``world_size`` and ``local_rank``. Where
            they say which rank this is, what the variables say of its node is not mixed in.
    """
    rows = recognised(env)
    if not rows and {"rank", "world_size"} - arguments.keys():
        return _alone(env, arguments)
    row = rows[0] if rows else HAND_WRITTEN
    named = {f"argument {name}": str(value) for name, value in arguments.items()}
    world = read(_overruled(row, env, arguments), {**env, **named}, others=rows[1:])
    if row is HAND_WRITTEN and not arguments:
        _check_others(world, rows[1:], env)
    return replace(world, sources={**world.sources, **dict.fromkeys(arguments, "argument")})


def _alone(env: Env, arguments: Mapping[str, int]) -> World:
    """A process that no launcher started; in an allocation of several tasks, that is said."""
    if "rank" in arguments or arguments.get("world_size", 1) > 1 or arguments.get("local_rank"):
        passed = " and ".join(f"{name}={value}" for name, value in arguments.items())
        fix = "pass rank= and world_size= both, or start under a launcher."
        raise LaunchError(told(f"no launcher is here, and only {passed} was passed.", fix=fix))
    counts = [n for n in ALLOCATED if re.fullmatch(r"0*(?!1$)[1-9][0-9]*", env.get(n, ""))]
    source = f"{NO_SRUN}{counts[0]} = {env[counts[0]]})" if counts else "no launcher"
    sources = {**dict.fromkeys(_FIELDS, source), **dict.fromkeys(arguments, "argument")}
    return World(0, 1, 0, 1, 0, 1, None, None, "single", sources=sources)


def from_variables(world: World, env: Env) -> World:
    """The world with MASTER_ADDR and MASTER_PORT, whatever its launcher says of them."""
    addr = word(world.launcher, ("MASTER_ADDR",), env)
    port = number(world.launcher, ("MASTER_PORT",), env, least=1, most=65535, optional=True)
    found = {"master_addr": addr, "master_port": port}
    said = {name: value for name, value in found.items() if value is not None}
    sources = {**world.sources, **{name: name.upper() for name in said}}
    return replace(world, **{**said, "sources": sources})  # type: ignore[arg-type]


def allocation(world: World) -> str | None:
    """The allocation of several tasks in which this process is alone, as a variable has it."""
    source = world.sources.get("world_size", "")
    found = source.removeprefix(NO_SRUN).removesuffix(")")
    return found if world.launcher == "single" and found != source else None


def _overruled(row: Launcher, env: Env, arguments: Mapping[str, int]) -> Launcher:
    """The row with arguments in the place of variables that speak of the same, or of a node.

    Where the rank is another, what the variables say of the node is of another process.
    """
    elsewhere = ("local_rank", "local_world_size", "tasks_per_node", "node_rank", "num_nodes")
    new = {
        n for n in arguments if env.get(present(getattr(row, n), env) or "") != str(arguments[n])
    }
    left = elsewhere if "rank" in new else ("num_nodes",) if "world_size" in new else ()
    said = {name: (f"argument {name}",) for name in arguments}
    changed: dict[str, Any] = {**dict.fromkeys(left, ()), **said}
    return replace(row, **changed, by_node=row.by_node or "rank" in new)


def _check_others(world: World, others: list[Launcher], env: Env) -> None:
    """Refuse RANK beside another launcher's rank of a job of the same size.

    Where the sizes differ one launcher was started inside the other, which is normal.
    """
    for row in others:
        rank, size = present(row.rank, env), present(row.world_size, env)
        if rank and size and env[size] == str(world.world_size) and env[rank] != str(world.rank):
            disagree(f"hand-written and {row.name}", env, "RANK", rank, f"is not {rank}")
