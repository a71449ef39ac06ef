"""detect: the world of this process, read from one row of the table of launchers.

All fields are read from one launcher's variables, each with its source, see
:mod:`meshkit.launch.launchers`. Explicit arguments override variables. A field that no variable
states or implies is None: nodes may hold different numbers of ranks, in any order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..call import drop_none, parse_integer, quotes_call
from ..errors import LaunchError
from .command import TORCHRUN_OPTIONS, check_pod
from .endpoint import (
    PORT,
    Env,
    Names,
    as_number,
    first_set,
    first_value,
    raise_conflict,
    raise_invalid,
    read_int,
    read_text,
)
from .launchers import BY_ENVIRONMENT, HAND_WRITTEN, SPAWN, Launcher, is_whole, matching_launchers
from .signs import sign_of_more, sign_of_others, starter
from .slurm import task_counts
from .urls import FILE, Refusal, host_fault, is_unspecified, url_fault
from .world import MAX_WORLD_SIZE, World, without_completed

ARGUMENT_FIELDS = ("rank", "world_size", "local_rank")
FIELDS = (*ARGUMENT_FIELDS, "local_world_size", "node_rank", "num_nodes")
ENDPOINT_FIELDS = ("master_addr", "master_port")
HOST = "<host of rank 0>"
IMPLYING = ("rank", "world_size", "local_world_size", "num_nodes")
EXPORTED_BY_SCRIPTS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

Fields = dict[str, tuple[Any, str]]  # field name to (value, source)


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
        A :class:`World` whose ``device`` and ``backend`` are None, and so are the fields of its
        node that no variable states; ``init`` finds them with the others. Without a launcher it is
        rank 0 of 1. ``allocation`` names a variable that says that the job of a single process
        is larger, if there is one.

    Raises:
        LaunchError: if a variable of the launcher is missing or malformed or contradicts another
            one, or an argument is not a valid rank or count.

    Example:
        >>> world = detect({"RANK": "3", "WORLD_SIZE": "4"})
        >>> world.rank, world.launcher, world.sources["rank"], world.local_rank
        (3, 'hand-written', 'RANK', None)
    """
    options = drop_none(rank=rank, world_size=world_size, local_rank=local_rank)
    options |= drop_none(master_addr=master_addr, master_port=master_port)
    env = os.environ if environ is None else environ
    if not isinstance(env, Mapping):
        line = f"environ is of the type {type(env).__name__}."
        raise LaunchError(line, fix='a dict such as {"RANK": "0", "WORLD_SIZE": "4"}.')
    checked = check_arguments(options)
    try:
        world = detect_world(env, checked)
        check_pod(world, env)
    except (AttributeError, TypeError):
        _check_texts(env)
        raise
    return world


def _check_texts(env: Env) -> None:
    """Check that an environment maps names to texts, as ``os.environ`` does."""
    for name, value in env.items():
        if not isinstance(value, str):
            line = f"environ[{name!r}] is {value!r}, and variables are texts."
            fix = f"leave out {name}." if value is None else f"{name!r}: {str(value)!r}."
            raise LaunchError(line, fix=fix) from None


def check_arguments(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of ``detect`` that were passed, as plain ints and a str."""
    checked: dict[str, Any] = {}
    for name in (name for name in ARGUMENT_FIELDS if name in options):
        number, least = parse_integer(options[name]), 1 if name == "world_size" else 0
        if number is None or number < least:
            raise LaunchError(f"{name} is {options[name]!r}.", fix=f"an int of {least} or more.")
        if number > MAX_WORLD_SIZE:
            raise LaunchError(f"{name} is {number}.", fix=f"at most {MAX_WORLD_SIZE} ranks.")
        checked[name] = number
    rank, world_size = checked.get("rank", 0), checked.get("world_size")
    if world_size is not None and rank >= world_size:
        fix = f"a rank from 0 to {world_size - 1}."
        raise LaunchError(f"there is no rank {rank} of {world_size}.", fix=fix)
    if "master_addr" in options:
        addr = options["master_addr"]
        fault = host_fault(addr.strip()) if isinstance(addr, str) else Refusal("it is not a str")
        if fault is not None:
            fix = f'master_addr="{fault.meant or HOST}"'
            fix += f", master_port={fault.port}" if fault.port else ""
            raise LaunchError(f"master_addr is {addr!r}: {fault.reason}.", fix=f"{fix}.")
        checked["master_addr"] = str(addr).strip()
    if "master_port" in options:
        port = parse_integer(options["master_port"])
        if port is None or not 1 <= port <= 65535:
            fix = "a port from 1 to 65535: master_port=29500."
            raise LaunchError(f"master_port is {options['master_port']!r}.", fix=fix)
        checked["master_port"] = port
    return checked


def detect_world(env: Env, arguments: Mapping[str, int | str]) -> World:
    """Return the world of :func:`detect`, for arguments that have been checked."""
    env = without_completed(env)
    rows = matching_launchers(env)
    if not rows and {"rank", "world_size"} - arguments.keys():
        return _single(env, arguments)
    row = rows[0] if rows else HAND_WRITTEN
    named = {f"argument {name}": str(value) for name, value in arguments.items()}
    used = _overridden(row, env, arguments) if arguments else row
    world = _world_of(used, {**env, **named}, rows[1:])
    if row is HAND_WRITTEN and not arguments:
        _check_others(world, rows[1:], env)
    if "world_size" not in arguments:
        world = replace(world, allocation=_sign_of_more(row, world.world_size, env))
    return replace(world, sources={**world.sources, **dict.fromkeys(arguments, "argument")})


def check_url(url: object, name: str = "init_method") -> str:
    """Return the URL of a store, or raise with what is wrong."""
    fault = url_fault(url) if isinstance(url, str) else Refusal("it is not a str")
    if fault is not None:
        is_file = str(url).lower().startswith("file:")
        meant = fault.meant or (f"{FILE}/shared/new-file" if is_file else f"tcp://{HOST}:{PORT}")
        raise LaunchError(
            f"{name} is {url!r}: {fault.reason}.",
            "A store is tcp://host:port, file:///shared/new-file, env:// or store://host:port/job.",
            fix=f'{name}="{meant}", the same on all ranks.',
            variables={} if name == "init_method" else {name: str(url)},
        )
    return str(url)


def check_reach(world: World, host: str | None, name: str) -> None:
    """Raise if ranks on several hosts would each look for the store on their own host."""
    if host and is_unspecified(host) and 1 < world.world_size != world.local_world_size:
        line = f"{name} names the host {host}, by which each rank reaches its own host."
        fix = f"{HOST} in place of {host}, the same on all ranks; or 127.0.0.1 on one host."
        variables = {name: host} if name == "MASTER_ADDR" else {}
        raise LaunchError(line, "Rank 0 hosts the store of the job.", fix=fix, variables=variables)


def use_master_variables(world: World, env: Env) -> World:
    """Return the world with MASTER_ADDR and MASTER_PORT in place of its launcher's endpoint."""
    fields = _endpoint_fields(HAND_WRITTEN._replace(name=world.launcher), env)
    values: dict[str, Any] = {name: value for name, (value, _) in fields.items()}
    sources = {**world.sources, **{name: source for name, (_, source) in fields.items()}}
    return replace(world, **values, sources=sources)


def _single(env: Env, arguments: Mapping[str, int | str]) -> World:
    """Return the world of a process without launcher; its sources name a sign of a larger job."""
    named = {name: value for name, value in arguments.items() if name in ARGUMENT_FIELDS}
    if "rank" in named or named.get("world_size", 1) != 1 or named.get("local_rank"):
        passed = " and ".join(f"{name}={value}" for name, value in named.items())
        fix = "pass rank= and world_size= both, or start under a launcher."
        raise LaunchError(f"no launcher was found, and only {passed} was passed.", fix=fix)
    if "master_addr" not in arguments:
        _check_address(env)
    allocation = sign_of_others(env)
    source = f"no {starter(allocation) or 'launcher'}"
    source += f" ({allocation})" if allocation else ""
    sources = {**dict.fromkeys(FIELDS, source), **dict.fromkeys(arguments, "argument")}
    endpoint: dict[str, Any] = {name: arguments.get(name) for name in ENDPOINT_FIELDS}
    allocation = None if "world_size" in arguments else allocation
    return World(
        0, 1, 0, 1, 0, 1, **endpoint, launcher="single", sources=sources, allocation=allocation
    )


def _check_address(env: Env) -> None:
    """Check the address that torch reads too, though one process needs none.

    Its port is not checked: Kubernetes sets ``MASTER_PORT=tcp://...`` for a service called master.
    """
    addr = env.get("MASTER_ADDR", "")
    fault = host_fault(addr.strip()) if addr.strip() else None
    if fault is not None:
        is_alone = sign_of_others({n: v for n, v in env.items() if n != "MASTER_ADDR"}) is None
        fix = "; or unset MASTER_ADDR, if this process is alone" if is_alone else ""
        raise LaunchError(
            f"MASTER_ADDR={addr!r} is not a host: {fault.reason}.",
            fix=f"{_address_fix(fault)}{fix}.",
            variables={"MASTER_ADDR": addr},
        )


def _address_fix(fault: Refusal) -> str:
    """Return the variables that were probably meant by an address that is no host."""
    port = f" MASTER_PORT={fault.port}" if fault.port else ""
    return f"export MASTER_ADDR={fault.meant or HOST}{port}, the same on all ranks"


def _overridden(row: Launcher, env: Env, arguments: Mapping[str, int | str]) -> Launcher:
    """Return the row without the variables that arguments override or make invalid."""
    node_fields = ("local_rank", "node_rank", "local_world_size", "tasks_per_node", "num_nodes")
    rank, size = (as_number(first_value(names, env)) for names in (row.rank, row.world_size))
    # with another rank, the variables about the node describe another process
    is_other_rank = arguments.get("rank", rank) != rank
    is_other_size = size is not None and arguments.get("world_size", size) != size
    ignored = node_fields if is_other_rank else node_fields[2:] if is_other_size else ()
    overrides = {name: (f"argument {name}",) for name in arguments}
    changes: dict[str, Any] = {**dict.fromkeys(ignored, ()), **overrides}
    return row._replace(**changes)


def _check_others(world: World, others: list[Launcher], env: Env) -> None:
    """Check RANK against the other launchers whose job has the same size, or WORLD_SIZE=1.

    A job of another size is nested, but a single process that another launcher has numbered among
    several would train alone beside them.
    """
    for row in (row for row in others if is_whole(row, env)):
        try:
            rank, name = read_int(row.name, row.rank, env, "rank")
            size, counted = _world_size(row, env)
        except LaunchError:  # variables that are not used may be malformed
            continue
        exported = " ".join(name for name in EXPORTED_BY_SCRIPTS if name in env)
        fix = f"unset {exported}: a script has exported them to all ranks of {row.name}"
        pair = f"hand-written and {row.name}"
        if size == world.world_size and rank != world.rank:
            raise_conflict(pair, env, "RANK", name, f"is not {name}", fix=f"{fix}.")
        if size > world.world_size == 1:
            fix += "; or init(rank=0, world_size=1), if each is alone."
            raise_conflict(pair, env, "WORLD_SIZE", counted, f"is not {counted}", fix=fix)


def _sign_of_more(row: Launcher, ranks: int, env: Env) -> str | None:
    """Return a variable that says that the job is larger than what a launcher has started."""
    if row in BY_ENVIRONMENT and ranks == 1:
        return sign_of_others(env)
    counts_itself = row is SPAWN or (row in BY_ENVIRONMENT and row is not HAND_WRITTEN)
    return None if counts_itself else sign_of_more(env, ranks)


def _fix_of_half(row: Launcher, env: Env, present: list[str], fix: str) -> str:
    """Return the fix of half a launcher; to unset it is right only for a process that is alone."""
    fix = fix.rstrip(".")
    sign = sign_of_others(env)
    if sign is None:
        return f"{fix}; or unset {' '.join(present)}, if this process is alone."
    if row is HAND_WRITTEN:
        return f"{fix}; or start the ranks with {starter(sign) or 'torchrun'}, which numbers them."
    return f"{fix}."


def _world_of(row: Launcher, env: Env, others: list[Launcher]) -> World:
    """Return the world that one launcher's variables describe."""
    fields: Fields = {}
    try:
        fields["rank"] = read_int(row.name, row.rank, env, "rank")
        fields["world_size"] = _world_size(row, env)
    except LaunchError as error:
        present = sorted({name for names in row.markers for name in names if name in env})
        hint = f"It sets {row.rank[0]} and {row.world_size[-1]} on every rank; "
        hint += f"{', '.join(present)} {'is' if len(present) == 1 else 'are'} set."
        hint += f" Without that, {others[0].name} would be used." if others else ""
        half = None if is_whole(row, env) else _fix_of_half(row, env, present, error.fix_text)
        raise error.but(evidence=(*error.evidence, hint), fix=half) from error.__cause__
    fields |= _node_fields(row, env, fields["world_size"][0])
    _check_bounds(row, fields, env)
    fields = {**_implied(fields), **fields, **_endpoint_fields(row, env)}
    if method := read_text(row.name, row.init_method, env):
        check_url(method[0], method[1])
        fields["init_method"] = method
    values: dict[str, Any] = dict.fromkeys((*FIELDS, *ENDPOINT_FIELDS))
    values |= {name: value for name, (value, _) in fields.items()}
    sources = {name: source for name, (_, source) in fields.items()}
    world = World(launcher=row.name, sources=sources, **values)
    if world.init_method is None:
        check_reach(world, world.master_addr, sources.get("master_addr", ""))
    return world


def _world_size(row: Launcher, env: Env) -> tuple[int, str]:
    """Return the number of ranks: a variable, or the sum of a list of tasks per node."""
    if first_set(row.world_size, env) is None and first_set(row.tasks_per_node, env):
        counts, name = _task_counts(row, env)
        return sum(counts), name
    return read_int(row.name, row.world_size, env, "world_size")


def _node_fields(row: Launcher, env: Env, world_size: int) -> Fields:
    """Return the fields of the node that variables state; a single rank needs no count of them."""
    columns = {"local_rank": row.local_rank}
    if world_size > 1:
        columns["local_world_size"] = _without_words(row.local_world_size, env)
        columns |= {"node_rank": row.node_rank, "num_nodes": _without_words(row.num_nodes, env)}
    fields = {
        field: read_int(row.name, names, env, field)
        for field, names in columns.items()
        if first_set(names, env)
    }
    if "node_rank" in fields and first_set(row.tasks_per_node, env):
        (counts, name), (node, variable) = _task_counts(row, env), fields["node_rank"]
        if len(counts) == 1 and "num_nodes" in fields:  # Spur has one count for all nodes
            nodes = fields["num_nodes"][0]
            counts *= nodes if counts[0] * nodes == world_size else 1
        if sum(counts) == world_size:  # else it is the list of the allocation, or of a part of it
            if node >= len(counts):
                fault = f"is a node that is missing from {name}"
                raise_conflict(row.name, env, variable, name, fault)
            fields["local_world_size"] = counts[node], name
            fields.setdefault("num_nodes", (len(counts), name))
    per_node, option = fields.get("local_world_size", (1, ""))
    # a platform sets the option for a torchrun that may not be used: the counts must agree
    nodes = fields["num_nodes"][0] if "num_nodes" in fields else world_size
    if option in TORCHRUN_OPTIONS and per_node * nodes != world_size:
        del fields["local_world_size"]
    return fields


def _without_words(names: Names, env: Env) -> Names:
    """Return the names without those in which torchrun finds a word or a range: auto, 1:4."""
    words = re.compile(r"\s*([A-Za-z]+|[0-9]+:[0-9]+)\s*")
    return tuple(
        n for n in names if not (n in TORCHRUN_OPTIONS and words.fullmatch(env.get(n, "")))
    )


def _task_counts(row: Launcher, env: Env) -> tuple[list[int], str]:
    """Return the number of tasks on each node, and the variable that lists them."""
    name = first_set(row.tasks_per_node, env) or ""
    try:
        return task_counts(env[name]), name
    except ValueError:
        fault = f"{name}={env[name]!r} is not a list of tasks per node, such as '2(x3),1'"
        fix = f"unset {name}"
        if first_set(row.world_size, env) is None:
            fix += f", and export {row.world_size[-2]}=<the number of ranks>, the same on all"
        raise_invalid(row.name, {name: env[name]}, fault, fix=f"{fix}.")


def _check_bounds(row: Launcher, fields: Fields, env: Env) -> None:
    """Check that each index is below its count, and that no count exceeds that of the ranks."""
    pairs = (
        ("rank", "world_size"),
        ("local_rank", "local_world_size"),
        ("local_rank", "world_size"),
        ("node_rank", "num_nodes"),
        ("node_rank", "world_size"),
    )
    for field, count in pairs:
        if field in fields and count in fields and fields[field][0] >= fields[count][0]:
            index, size = fields[field][1], fields[count][1]
            raise_conflict(row.name, env, index, size, f"must be below {size}")
    ranks, size = fields["world_size"]
    if ranks > MAX_WORLD_SIZE:
        fix = f"at most {MAX_WORLD_SIZE} ranks."
        raise_invalid(row.name, {size: env.get(size)}, f"{size} is {ranks}", fix=fix)
    per_node, nodes = (fields.get(name) for name in ("local_world_size", "num_nodes"))
    for number, name in filter(None, (per_node, nodes)):
        if number > ranks:
            raise_conflict(row.name, env, name, size, f"is more than {size}")
    if nodes is None:
        return
    most = ranks - nodes[0] + 1  # ranks of one node, since each other node has a rank
    local_rank, name = fields.get("local_rank", (0, ""))
    if per_node and not (ranks if nodes[0] == 1 else 1) <= per_node[0] <= most:
        raise_conflict(row.name, env, per_node[1], nodes[1], f"contradicts {nodes[1]}")
    if local_rank >= most:
        raise_conflict(row.name, env, name, nodes[1], f"contradicts {nodes[1]}")


def _implied(fields: Fields) -> Fields:
    """Return the fields that follow from others, of a job on one node or of one rank per node."""
    rank, ranks, per_node, nodes = (fields.get(name, (0, ""))[0] for name in IMPLYING)
    if per_node == ranks or 1 in (nodes, ranks):
        return dict(zip(FIELDS[2:], ((n, "one node") for n in (rank, ranks, 0, 1)), strict=True))
    if per_node == 1 or nodes == ranks:
        return {name: (n, "one rank per node") for n, name in enumerate(FIELDS[2:4])}
    return {}


def _endpoint_fields(row: Launcher, env: Env) -> Fields:
    """Return MASTER_ADDR and MASTER_PORT if set, else the endpoint that the launcher implies."""
    host = read_text(row.name, row.master_addr, env)
    port = None
    if first_set(row.master_port, env):
        port = read_int(row.name, row.master_port, env, "master_port")
    if not (host and port):
        endpoints = (source.find(row.name, env) for source in row.endpoint_sources)
        if implied := next(filter(None, endpoints), None):
            host = host or (implied.host, implied.host_source)
            port = port or (implied.port, implied.port_source)
    if host and (fault := host_fault(host[0])):
        name = host[1]
        value = env.get(name, host[0])
        subject = "" if value.strip() == host[0] else f"{host[0]!r}, the first host of "
        line = f"{subject}{name}={value!r} is not a host: {fault.reason}"
        raise_invalid(row.name, {name: env.get(name)}, line, fix=f"{_address_fix(fault)}.")
    fields = {"master_addr": host, "master_port": port}
    return {name: field for name, field in fields.items() if field is not None}
