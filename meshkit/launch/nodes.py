"""The node of a rank, from the machines of all ranks, if no variable of its launcher states it.

A pod with one process knows its rank and the size of the job, and neither its local rank nor the
number of nodes. Once all ranks have arrived in ``init``, their processes name their machines. A
node is such a machine, numbered by its first rank::

    rank                0  1  2  3  4
    machine             a  b  a  a  b
    local_rank          0  0  1  2  1
    local_world_size    3  2  3  3  2
    node_rank           0  1  0  0  1        num_nodes 2

A process that joins a running job takes the first local rank that no rank of its machine has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, groupby
from typing import Any

from .judges import Arrival, Arrivals
from .store import Store, read_value
from .times import TIMES, Deadline
from .world import NODE_FIELDS, World

LOCAL_RANK = "local_rank"  # the fact of a rank in a round that may have newcomers
FROM_MACHINES = "the machines of the ranks"
# In the store of a start: how many ranks have asked, and the node of each rank, which the first of
# them writes: [[node, how many consecutive ranks], ...].
ASKED, NODES = "nodes/asked", "nodes"


def number_nodes(machines: Sequence[str]) -> list[int]:
    """Return the node of each rank, numbered in the order of the first ranks.

    Example:
        >>> number_nodes(["a", "b", "a"])
        [0, 1, 0]
    """
    numbers = {machine: number for number, machine in enumerate(dict.fromkeys(machines))}
    return [numbers[machine] for machine in machines]


def place_on_node(world: World, nodes: Sequence[int]) -> World:
    """Return the world with the fields of its node that are None, from the node of each rank. Pure.

    A field stays None if the machines contradict what the launcher states. Two containers on one
    machine may be two nodes to a launcher.
    """
    own = nodes[world.rank]
    found = {
        "local_rank": nodes[: world.rank].count(own),
        "local_world_size": nodes.count(own),
        "node_rank": own,
        "num_nodes": max(nodes) + 1,
    }
    new: dict[str, Any] = {}
    for pair in (NODE_FIELDS[:2], NODE_FIELDS[2:]):
        known = [name for name in pair if getattr(world, name) is not None]
        if all(getattr(world, name) == found[name] for name in known):
            new |= {name: found[name] for name in pair if name not in known}
    return replace(world, **new, sources={**world.sources, **dict.fromkeys(new, FROM_MACHINES)})


def free_local_rank(
    rank: int, arrived: Mapping[int, Arrival], newcomers: Sequence[int]
) -> int | None:
    """Return the local rank of a newcomer, the first that is free on its machine. Pure.

    Newcomers of one machine that lack a local rank are numbered in the order of their ranks. None
    if a rank of the machine is no newcomer, and does not know its own.
    """
    machine = arrived[rank].process.machine
    mates = {r: a for r, a in sorted(arrived.items()) if a.process.machine == machine}
    known = {r: a.facts[LOCAL_RANK] for r, a in mates.items()}
    asking = [r for r, local_rank in known.items() if local_rank is None]
    if not {*asking} <= {*newcomers}:
        return None
    free = (number for number in count() if number not in known.values())
    return dict(zip(asking, free, strict=False))[rank]


def find_node(
    world: World, store: Store, arrived: Callable[[], Arrivals], deadline: Deadline
) -> World:
    """Return the world with the fields of its node. Local, once all ranks have arrived.

    Cost: none if the launcher states all of them, else two store operations. The first rank that
    asks also reads all arrivals.
    """
    if None not in (getattr(world, name) for name in NODE_FIELDS):
        return world
    limit = deadline.left + TIMES.store

    def ask() -> bytes | None:
        is_first = store.add(ASKED, 1) == 1
        answer = Deadline.after(TIMES.store)  # if the first one is lost, this one reads them too
        return None if is_first else store.wait(NODES, answer, world.world_size)

    record: str | bytes | None = store.within(limit + TIMES.store, ask)
    if record is None:
        processes = arrived().arrived
        machines = [processes[rank].process.machine for rank in range(world.world_size)]
        runs = [[node, len([*ranks])] for node, ranks in groupby(number_nodes(machines))]
        record = json.dumps(runs)
        store.within(limit, partial(store.set, NODES, record))
    nodes = read_value(NODES, record, partial(_read_nodes, world.world_size))
    return place_on_node(world, nodes)


def _read_nodes(num_ranks: int, record: str) -> list[int]:
    """Return the node of each rank, as the first rank has written them."""
    runs = [(int(node), int(count)) for node, count in json.loads(record)]
    if sum(count for _, count in runs) != num_ranks:
        raise ValueError("it is of another number of ranks")
    return [node for node, count in runs for _ in range(count)]
