"""One row of the table of launchers, read: the fields of a World, each with its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .hostlist import task_counts
from .table import Launcher
from .endpoint import Address
from .variables import Env, Names, disagree, number, present, refuse, word
from .world import World

_OPEN: dict[str, Any] = dict.fromkeys(
    ("local_world_size", "node_rank", "num_nodes", "master_addr", "master_port")
)
Found = dict[str, tuple[Any, str]]  # field to its value and the source of that


def read(row: Launcher, env: Env, *, others: list[Launcher]) -> World:
    """Who a process is, as one launcher says.

    What the launcher leaves open is derived from its own answers only.

    Args:
        row: the launcher.
        env: the variables.
        others: launchers that would answer if this one did not, for the error.

    Raises:
        LaunchError: where a variable is missing or malformed, or two contradict each other.
    """
    found = {**_numbers(row, env, _hint(row, env, others)), **_listed(row, env)}
    _check(row, found, env)
    found |= _derived(row, found) | _meeting(row, env)
    if method := word(row.name, row.init_method, env):
        found["init_method"] = (method, row.init_method[0])
    values: dict[str, Any] = {field: value for field, (value, _) in found.items()}
    return World(
        launcher=row.name,
        sources={field: source for field, (_, source) in found.items()},
        **{**_OPEN, **values},
    )


def _hint(row: Launcher, env: Env, others: list[Launcher]) -> str:
    """By what the launcher was recognised, and who would answer if it were not."""
    seen = sorted({name for names in row.known_by for name in names if name in env})
    hint = f"It says who a process is in {row.rank[0]} and {row.world_size[-1]}; "
    hint += f"{', '.join(seen)} {'is' if len(seen) == 1 else 'are'} set."
    return hint + (f" Without that, {others[0].name} would answer." if others else "")


def _numbers(row: Launcher, env: Env, hint: str) -> Found:
    """The fields that are one variable each."""
    columns: tuple[tuple[str, Names, int, bool], ...] = (
        ("rank", row.rank, 0, False),
        ("world_size", row.world_size, 1, False),
        ("local_rank", row.local_rank, 0, row.by_node),
        ("local_world_size", row.local_world_size, 1, True),
        ("node_rank", row.node_rank, 0, True),
        ("num_nodes", row.num_nodes, 1, True),
    )
    found: Found = {}
    for field, names, least, optional in columns:
        value = number(row.name, names, env, least=least, optional=optional, hint=hint)
        if value is not None:
            found[field] = (value, present(names, env) or "")
    return found


def _listed(row: Launcher, env: Env) -> Found:
    """The local size, from a list of tasks by node."""
    name, place = present(row.tasks_per_node, env), present(row.node_rank, env)
    if name is None or place is None:
        return {}
    try:
        counts = task_counts(env[name])
    except ValueError:
        fault = f"{name}={env[name]!r} is no list of tasks by node, such as '2(x3),1'"
        refuse(row.name, {name: env[name]}, fault, fix=f"unset {name}.")
    if int(env[place]) < len(counts):
        return {"local_world_size": (counts[int(env[place])], name)}
    disagree(row.name, env, place, name, f"is a node that is not in {name}")


def _check(row: Launcher, found: Found, env: Env) -> None:
    """Refuse an index that is outside its count, and a node larger than the job."""
    pairs = (
        ("rank", "world_size"),
        ("local_rank", "local_world_size"),
        ("local_rank", "world_size"),
        ("node_rank", "num_nodes"),
    )
    for field, count in pairs:
        if field in found and count in found and found[field][0] >= found[count][0]:
            index, size = found[field][1], found[count][1]
            disagree(row.name, env, index, size, f"must be below {size}")
    if found.get("local_world_size", (0, ""))[0] > found["world_size"][0]:
        local, size = found["local_world_size"][1], found["world_size"][1]
        disagree(row.name, env, local, size, f"is more than {size}")


def _derived(row: Launcher, said: Found) -> Found:
    """What the variables leave open but imply, with how; it overrides nothing."""
    return {field: value for field, value in _implied(row, said) if field not in said}


def _implied(row: Launcher, said: Found) -> Iterator[tuple[str, tuple[int, str]]]:
    rank, world_size = said["rank"][0], said["world_size"][0]
    local_size = said["local_world_size"][0] if "local_world_size" in said else None
    nodes = said["num_nodes"][0] if "num_nodes" in said else 1
    if "local_rank" not in said:
        even = "one node assumed" if nodes == 1 else "world_size // num_nodes"
        how = "rank % local_world_size" if local_size else even
        local_size = local_size or max(1, world_size // nodes)
        yield "local_world_size", (local_size, even)
        yield "local_rank", (rank % local_size, how)
    local_rank = said["local_rank"][0] if "local_rank" in said else rank % (local_size or 1)
    by_node = row.by_node or local_size == world_size
    if local_size and by_node and world_size % local_size == 0 and rank % local_size == local_rank:
        yield "node_rank", (rank // local_size, "rank // local_world_size")
        yield "num_nodes", (world_size // local_size, "world_size // local_world_size")


def _meeting(row: Launcher, env: Env) -> Found:
    """Where ranks meet: what the address variables say, else what the launcher implies."""
    host = word(row.name, row.master_addr, env)
    port = number(row.name, row.master_port, env, least=1, most=65535, optional=True)
    implied = None if host and port else _place(row, env)
    found: Found = {}
    if implied:
        found["master_addr"] = (implied.host, implied.host_source)
        found["master_port"] = (implied.port, implied.port_source)
    if host:
        found["master_addr"] = (host, present(row.master_addr, env) or "")
    if port:
        found["master_port"] = (port, present(row.master_port, env) or "")
    return found


def _place(row: Launcher, env: Env) -> Address | None:
    """The first place that the launcher's own words tell."""
    places = (place.find(row.name, env) for place in row.places)
    return next((place for place in places if place), None)
