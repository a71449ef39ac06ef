"""The fields of a World, read from one row of the table of launchers, each with its source.

detect: read from the launcher's variables which rank this process is.

All fields are read from one launcher's variables, see :mod:`meshkit.launch.launchers`.
Explicit arguments override variables. Missing fields are derived from variables of the same
launcher.

The command line of this program, for errors that say how to start it on several ranks.

Slurm's ``topology.conf``: the switch, or NVLink block, above each node.

::

    SwitchName=s0 Nodes=n[1-4]               spine     |       top       |
    SwitchName=s1 Nodes=n[5-8]               switch    |   s0   |   s1   |
    SwitchName=top Switches=s[0-1]           node      | n1..n4 | n5..n8 |

Lines such as ``BlockName=b1 Nodes=n[1-18]`` make one level, ``block``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.call import drop_none, parse_integer, quotes_call
from ..core.errors import CALL, LaunchError, SpecError
from ..core.topology import Topology
from .endpoint import (
    COMPLETED,
    Env,
    Names,
    first_set,
    first_value,
    host_names,
    raise_conflict,
    raise_invalid,
    read_int,
    read_text,
)
from .launchers import HAND_WRITTEN, Launcher, matching_launchers
from .world import MAX_WORLD_SIZE, World, without_completed

_OPEN: dict[str, Any] = dict.fromkeys(
    ("local_world_size", "node_rank", "num_nodes", "master_addr", "master_port")
)
Fields = dict[str, tuple[Any, str]]  # field name to (value, source)


def world_from_launcher(row: Launcher, env: Env, *, others: list[Launcher]) -> World:
    """Return the world that one launcher's variables describe.

    Fields without a variable are derived from other variables of the same launcher.
    """
    try:
        fields = _number_fields(row, env)
    except LaunchError as error:
        error.evidence += (_hint(row, env, others),)
        raise
    if row.tasks_per_node:
        fields |= _local_size(row, env)
    _check(row, fields, env)
    implied = {name: value for name, value in _implied(row, fields) if name not in fields}
    fields |= implied | _endpoint_fields(row, env)
    if method := read_text(row.name, row.init_method, env):
        fields["init_method"] = method
    values: dict[str, Any] = {name: value for name, (value, _) in fields.items()}
    return World(
        launcher=row.name,
        sources={name: source for name, (_, source) in fields.items()},
        **{**_OPEN, **values},
    )


def _hint(row: Launcher, env: Env, others: list[Launcher]) -> str:
    """Return the line that says why this launcher matches and which one would be next."""
    present = sorted({name for names in row.markers for name in names if name in env})
    hint = f"It sets {row.rank[0]} and {row.world_size[-1]} on every rank; "
    hint += f"{', '.join(present)} {'is' if len(present) == 1 else 'are'} set."
    return hint + (f" Without that, {others[0].name} would be used." if others else "")


def _number_fields(row: Launcher, env: Env) -> Fields:
    """Return the fields that are one variable each."""
    columns: tuple[tuple[str, Names, int, bool], ...] = (
        ("rank", row.rank, 0, False),
        ("world_size", row.world_size, 1, False),
        ("local_rank", row.local_rank, 0, row.by_node),
        ("local_world_size", row.local_world_size, 1, True),
        ("node_rank", row.node_rank, 0, True),
        ("num_nodes", row.num_nodes, 1, True),
    )
    numbers = (
        (field, read_int(row.name, names, env, least=least, optional=optional))
        for field, names, least, optional in columns
    )
    return {field: number for field, number in numbers if number is not None}


def _local_size(row: Launcher, env: Env) -> Fields:
    """Return the local world size from a list of tasks per node, if the launcher sets one."""
    name, node = first_set(row.tasks_per_node, env), first_set(row.node_rank, env)
    if name is None or node is None:
        return {}
    from .endpoint import task_counts

    try:
        counts = task_counts(env[name])
    except ValueError:
        fault = f"{name}={env[name]!r} is not a list of tasks per node, such as '2(x3),1'"
        raise_invalid(row.name, {name: env[name]}, fault, fix=f"unset {name}.")
    if int(env[node]) < len(counts):
        return {"local_world_size": (counts[int(env[node])], name)}
    raise_conflict(row.name, env, node, name, f"is a node that is missing from {name}")


def _check(row: Launcher, fields: Fields, env: Env) -> None:
    """Check that each index is below its count and that no node is larger than the job."""
    pairs = (
        ("rank", "world_size"),
        ("local_rank", "local_world_size"),
        ("local_rank", "world_size"),
        ("node_rank", "num_nodes"),
    )
    for field, count in pairs:
        if field in fields and count in fields and fields[field][0] >= fields[count][0]:
            index, size = fields[field][1], fields[count][1]
            raise_conflict(row.name, env, index, size, f"must be below {size}")
    if fields.get("local_world_size", (0, ""))[0] > fields["world_size"][0]:
        local, size = fields["local_world_size"][1], fields["world_size"][1]
        raise_conflict(row.name, env, local, size, f"is more than {size}")


def _implied(row: Launcher, fields: Fields) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the fields that the others imply, with the formula."""
    rank, world_size = fields["rank"][0], fields["world_size"][0]
    local_size = fields["local_world_size"][0] if "local_world_size" in fields else None
    nodes = fields["num_nodes"][0] if "num_nodes" in fields else 1
    if "local_rank" not in fields:
        even = "one node assumed" if nodes == 1 else "world_size // num_nodes"
        formula = "rank % local_world_size" if local_size else even
        local_size = local_size or max(1, world_size // nodes)
        yield "local_world_size", (local_size, even)
        yield "local_rank", (rank % local_size, formula)
    local_rank = fields["local_rank"][0] if "local_rank" in fields else rank % (local_size or 1)
    by_node = row.by_node or local_size == world_size
    if local_size and by_node and world_size % local_size == 0 and rank % local_size == local_rank:
        yield "node_rank", (rank // local_size, "rank // local_world_size")
        yield "num_nodes", (world_size // local_size, "world_size // local_world_size")


def _endpoint_fields(row: Launcher, env: Env) -> Fields:
    """Return MASTER_ADDR and MASTER_PORT if set, else the endpoint that the launcher implies."""
    host = read_text(row.name, row.master_addr, env)
    port = read_int(row.name, row.master_port, env, least=1, most=65535, optional=True)
    endpoints = (source.find(row.name, env) for source in row.endpoint_sources)
    implied = None if host and port else next((point for point in endpoints if point), None)
    if implied:
        host = host or (implied.host, implied.host_source)
        port = port or (implied.port, implied.port_source)
    fields = {"master_addr": host, "master_port": port}
    return {name: field for name, field in fields.items() if field is not None}


__all__ = ["World", "detect", "detect_world"]

NO_SRUN = "no srun ("
# The number of tasks or nodes of an allocation in which no srun has started a task yet.
ALLOCATED = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES")

ARGUMENT_FIELDS = ("rank", "world_size", "local_rank")
ENDPOINT_FIELDS = ("master_addr", "master_port")
FIELDS = (*ARGUMENT_FIELDS, "local_world_size", "node_rank", "num_nodes")


def environment() -> Env:
    """Return the variables of this process, for checks outside ``launch/``."""
    return os.environ


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


def program_arguments() -> str | None:
    """Return this program as it follows ``python``: ``train.py --dp 4``, ``-m package``.

    None for a prompt, a notebook or ``python -c``.
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        words = ["-m", str(spec.name).removesuffix(".__main__")]
    elif file is not None and Path(file).exists():
        words = [sys.argv[0] if Path(sys.argv[0]).is_file() else file]
    else:
        return None
    return shlex.join([*words, *sys.argv[1:]])


def propose_command(error: SpecError, world: World, num_ranks: int) -> None:
    """Let the error of a program without launcher propose the command that starts enough ranks."""
    if world.launcher == "single" and num_ranks > world.world_size:
        error.fix = start_command(world, num_ranks)


def start_command(world: World, num_ranks: int) -> str:
    """Return the command that starts this program on a number of ranks, or a call of spawn."""
    program = program_arguments()
    if program is None:
        return f"meshkit.spawn(fn, {num_ranks}), with {CALL} in fn."
    if allocation_without_srun(world):
        return f"srun -n {num_ranks} python {program}"
    return f"torchrun --nproc-per-node {num_ranks} {program}"


TIERS = ("switch", "spine", "superspine")

Parents = dict[str, str]  # a node or switch to the switch or block above it


@quotes_call("slurm_topology")
def slurm_topology(text: str, hosts: Sequence[str]) -> Topology:
    """Return the topology of ranks with Slurm's switches or blocks as levels. Pure.

    The levels are ``"block"``, or from the nodes up ``"switch"``, ``"spine"``, ``"superspine"``,
    ``"tier 4"`` and so on. A switch without a parent is its own domain on the levels above.

    Args:
        text: the content of ``topology.conf``; keywords in any case. A backslash at the end of a
            line continues it. Comments and other keywords (``LinkSpeed=``, ``BlockSizes=``) are
            skipped.
        hosts: the host of each rank, in rank order, as Slurm names it. A domain after the first
            dot is dropped if Slurm only knows the short name.

    Raises:
        SpecError: if a line is malformed, the switches form a cycle, or a host has no switch.

    Example:
        >>> lines = ["SwitchName=s0 Nodes=n1", "SwitchName=s1 Nodes=n2"]
        >>> lines += ["SwitchName=top Switches=s[0-1]"]
        >>> topology = slurm_topology(chr(10).join(lines), ["n1", "n1", "n2", "n2"])
        >>> print(topology, topology.domain_names("switch"), sep="; ")
        4 ranks on 2 nodes of 2, in 2 switches, in 1 spine; ('s0', 's1')
    """
    block, parents = _read(text)
    topology = Topology.of_hosts(hosts)
    chains = [[*_above(parents, host)] for host in topology.names]
    for height in range(max(map(len, chains))):
        name = TIERS[height] if height < len(TIERS) else f"tier {height + 1}"
        name = "block" if block and height == 0 else name
        topology = topology.with_level(
            name, [chain[min(height, len(chain) - 1)] for chain in chains]
        )
    return topology


def _read(text: str) -> tuple[bool, Parents]:
    """Return whether the file has blocks, and the parent of each node and switch."""
    block, parents = False, Parents()
    for number, line in _lines(text):
        fields = _fields(line)
        name = fields.get("switchname") or fields.get("blockname")
        if name is None:
            if fields.keys() - {"blocksizes"}:
                raise _unread(number, line, "it has no SwitchName and no BlockName")
            continue
        block = block or "blockname" in fields
        for child in _children(number, line, fields):
            if parents.setdefault(child, name) != name:
                raise _unread(number, line, f"{child} is already below {parents[child]}")
    return block, parents


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with the number of their first part, joined at a final backslash."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, joined
            joined, first = "", 0
    if first:
        yield first, joined


def _fields(line: str) -> dict[str, str]:
    """Return the ``key=value`` words of a line by lower-case key; "" without a value."""
    words = (word.partition("=") for word in line.partition("#")[0].split())
    return {key.lower(): value for key, _, value in words}


def _children(number: int, line: str, fields: dict[str, str]) -> Iterator[str]:
    for key in ("nodes", "switches"):
        try:
            yield from host_names(fields.get(key, ""))
        except ValueError as error:
            raise _unread(number, line, str(error)) from None


def _above(parents: Parents, host: str) -> Iterator[str]:
    """Yield the switches above a host, the nearest first."""
    name = host if host in parents else host.partition(".")[0]
    if name not in parents:
        line = f"{host} is below no switch."
        fix = f"a line such as SwitchName=s0 Nodes={host}, or hosts spelled as in Slurm."
        raise SpecError(line, fix=fix)
    seen = {name}
    while (name := parents.get(name, "")) and name not in seen:
        seen.add(name)
        yield name
    if name:
        line = f"the switch {name} is above itself."
        raise SpecError(line, fix="Switches= lines that form a tree.")


def _unread(number: int, line: str, fault: str) -> SpecError:
    evidence = f"Line {number} is {line.strip()!r}: {fault}."
    fix = "lines such as SwitchName=s0 Nodes=n[1-4], or SwitchName=top Switches=s[0-1]."
    return SpecError("the text is not a valid topology.conf.", evidence, fix=fix)
