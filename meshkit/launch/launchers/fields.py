"""The fields of a World, read from one row of the table of launchers, each with its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.errors import LaunchError
from .launcher import Launcher
from .variables import Env, Names, first_set, raise_conflict, raise_invalid, read_int, read_text
from .world import World

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
    from .hostlist import task_counts

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
