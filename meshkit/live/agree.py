"""All ranks compare what they asked for before a group exists, and again when all groups do.

What must be equal is a request: fields in words. A rank whose own request is refused says so in the
meeting to which the others come, so that nobody waits for a rank that is alive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from ..core.call import Call, written
from ..core.errors import MeshkitError
from ..core.layout import Layout
from ..core.plan import GroupPlan
from ..core.topology.topology import Topology
from ..core.version import VERSION
from ..core.words import format_sizes
from ..launch.meet import Matter, Party, arrive, refuse
from ..launch.record import Joined, joined
from ..launch.rendezvous import give_up as give_up_joining
from ..launch.times import in_words
from ..launch.together import together
from ..launch.world import World
from .shared import Shared
from .terms import Terms

ABOUT = "ranks disagree about the mesh; no process group was created."
UNMADE = "a rank could not create its groups of the mesh; all are closed again."
Made = TypeVar("Made")

TELLING = timedelta(seconds=5)  # how long a refused rank tries to reach the store


def agree(
    call: Call,
    plan: GroupPlan,
    record: Joined,
    terms: Terms,
    shared: Shared,
) -> int:
    """Compare the request of every rank; the number of the meeting. Collective.

    Args:
        call: the call to quote.
        plan: what to create.
        record: what is known of the default group, with the times of this mesh.
        terms: on what terms.
        shared: the groups that are there already.

    Raises:
        DisagreementError: the same on every rank.
        RankTimeoutError: where ranks did not come.
    """
    asked = request(call, plan, record, terms, shared)
    return _meet(Matter(call, asked, ABOUT, (), coordinates_of(plan.layout)), record)


def on_all(
    call: Call,
    layout: Layout,
    record: Joined,
    make: Callable[[timedelta], Made],
    undo: Callable[[Made], None],
    waits: bool,
) -> Made:
    """Make the groups of a mesh on all ranks or on none. Collective. See :func:`together`."""
    request = {"call": f"{call.name}, made"}
    matter = Matter(call, request, UNMADE, (), coordinates_of(layout), "the end of ")
    party = None if record.store is None else Party.of(record.store, record.world)
    return together(matter, party, record.arrival_timeout, make, undo, waits=waits)


def give_up(call: Call, world: World, error: MeshkitError) -> None:
    """Tell the others that this rank's own request was refused. Local, some 10 s at most."""
    record = joined()
    if record is None:
        give_up_joining(Matter(Call("init"), {}, ABOUT), world, TELLING, error)
    elif record.store is not None:
        refuse(Matter(call, {}, ABOUT), Party.of(record.store, record.world), error)


def agree_value(layout: Layout, record: Joined, number: int, what: str, value: object) -> None:
    """Compare a value of the caller's own over the ranks of a mesh. Collective over them.

    Args:
        layout: the ranks.
        record: what is known of the default group.
        number: that of the meeting in which the mesh was agreed upon.
        what: what the value is.
        value: compared by its ``repr``.

    Raises:
        DisagreementError: the same on every rank, with who has which value.
        RankTimeoutError: where ranks did not come.
    """
    call = Call("mesh.agree", (what, value))
    matter = Matter(
        call, {what: repr(value)}, f"ranks disagree about {what}.", (), coordinates_of(layout)
    )
    _meet_in_mesh(matter, layout, record, number)


def agree_close(layout: Layout, record: Joined, number: int, built: Call) -> None:
    """Wait until every rank closes this mesh. Collective over its ranks. Raises as above."""
    call = Call("mesh.close")
    about = "ranks disagree about the end of a mesh."
    said = {"call": "mesh.close", "mesh": f"{built}, number {number}"}
    matter = Matter(call, said, about, (), coordinates_of(layout))
    if layout.num_ranks > 1 and record.world.rank in layout:
        _meet_in_mesh(matter, layout, record, number)


def _meet_in_mesh(matter: Matter, layout: Layout, record: Joined, number: int) -> None:
    """The ranks of a mesh; where they are all, in the meetings of the world, beside other calls."""
    if layout.num_ranks == record.world.world_size:
        _meet(matter, record)
    elif record.store is not None:
        ranks = sorted(int(rank) for rank in layout.grid.flat)
        party = Party(record.store, record.world, ranks, f"mesh/{number}/")
        arrive(matter, party, record.arrival_timeout)


def request(
    call: Call,
    plan: GroupPlan,
    record: Joined,
    terms: Terms,
    shared: Shared,
) -> dict[str, str]:
    """All that must be equal on every rank, field by field, in words."""
    layout = plan.layout
    return {
        "call": call.name,
        "sizes": format_sizes(layout.sizes),
        "place": _place(terms.place),
        "ranks": _seats(layout),
        "groups": ", ".join(" ".join(axes) for axes in plan.extra) or "the usual",
        "crossing": format_sizes(terms.crossing),
        "backend": terms.backend or str(record.world.backend),
        "timeout": str(terms.limits),
        "arrival_timeout": in_words(record.arrival_timeout),
        "meshkit": VERSION,
        "torch": torch.__version__,
        "history": f"{dist.get_pg_count()} groups",
        **_there(shared),
    }


def _there(shared: Shared) -> dict[str, str]:
    """What is there already, in words: open views, and for which members a user lends groups."""
    views = {"open": shared.in_words()} if shared.users else {}
    return {**views, **({"lent": shared.lends} if shared.lends else {})}


def _place(place: Topology | bool) -> str:
    """Where ranks were said to sit, with a digest, as words do not tell all."""
    if isinstance(place, bool):
        return str(place)
    nodes = place.node_of(range(place.world_size))
    return f"{place} ({hashlib.sha256(nodes.tobytes()).hexdigest()[:8]})"


def _seats(layout: Layout) -> str:
    """The ranks by position: as written where few, with a digest where they are cut short."""
    if isinstance(layout.ranks, range):
        return str(layout.ranks)
    ranks = np.asarray(layout.ranks)
    return f"{written(ranks)} ({hashlib.sha256(ranks.tobytes()).hexdigest()[:8]})"


def coordinates_of(layout: Layout) -> Callable[[int], str]:
    """A rank's coordinate in words."""

    def place(rank: int) -> str:
        if rank not in layout:
            return "outside"
        return format_sizes(layout.coordinate(rank))

    return place


def _meet(matter: Matter, record: Joined) -> int:
    """Every rank of the world; 0 where torch tells no store, and there is nobody to meet."""
    if record.store is None:
        return 0
    return arrive(matter, Party.of(record.store, record.world), record.arrival_timeout)
