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

from ...core.call import Call, format_value
from ...core.errors import MeshkitError
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.text import format_sizes
from ...core.topology.topology import Topology
from ...core.version import VERSION
from ...launch.agreement.commit import commit_on_all
from ...launch.agreement.consensus import Participants, Proposal, agree, announce_failure
from ...launch.default_group import Job, current_job
from ...launch.launchers.world import World
from ...launch.rendezvous.rendezvous import announce_init_failure as give_up_joining
from ...launch.timeouts import format_timeout
from ..groups.options import GroupOptions
from ..groups.registry import GroupRegistry

ABOUT = "ranks disagree about the mesh; no process group was created."
UNMADE = "a rank could not create its groups of the mesh; all are closed again."
Made = TypeVar("Made")

TELLING = timedelta(seconds=5)  # how long a refused rank tries to reach the store


def agree_on_mesh(
    plan: GroupPlan,
    record: Job,
    terms: GroupOptions,
    shared: GroupRegistry,
) -> int:
    """Compare the request of every rank; the number of the meeting. Collective.

    Args:
        plan: what to create.
        record: what is known of the default group, with the times of this mesh.
        terms: on what terms.
        shared: the groups that are there already.

    Raises:
        DisagreementError: the same on every rank.
        RankTimeoutError: where ranks did not come.
    """
    asked = proposal_fields(plan, record, terms, shared)
    return _meet(Proposal("build_mesh", asked, ABOUT, (), coordinate_formatter(plan.layout)), record)


def commit_groups(
    layout: Layout,
    record: Job,
    make: Callable[[timedelta], Made],
    undo: Callable[[Made], None],
    waits: bool,
) -> Made:
    """Make the groups of a mesh on all ranks or on none. Collective. See :func:`commit_on_all`."""
    request = {"call": "build_mesh, made"}
    matter = Proposal("build_mesh", request, UNMADE, (), coordinate_formatter(layout), "the end of ")
    party = None if record.store is None else Participants.of(record.store, record.world)
    return commit_on_all(matter, party, record.arrival_timeout, make, undo, waits=waits)


def announce_refusal(world: World, error: MeshkitError) -> None:
    """Tell the others that this rank's own request was refused. Local, some 10 s at most."""
    record = current_job()
    if record is None:
        give_up_joining(Proposal("init", {}, ABOUT), world, TELLING, error)
    elif record.store is not None:
        announce_failure(
            Proposal("build_mesh", {}, ABOUT), Participants.of(record.store, record.world), error
        )


def agree_value(layout: Layout, record: Job, number: int, what: str, value: object) -> None:
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
    matter = Proposal(
        "mesh.agree", {what: repr(value)}, f"ranks disagree about {what}.", (), coordinate_formatter(layout)
    )
    _meet_in_mesh(matter, layout, record, number)


def agree_close(layout: Layout, record: Job, number: int, built: Call) -> None:
    """Wait until every rank closes this mesh. Collective over its ranks. Raises as above."""
    about = "ranks disagree about the end of a mesh."
    said = {"call": "mesh.close", "mesh": f"{built}, number {number}"}
    matter = Proposal("mesh.close", said, about, (), coordinate_formatter(layout))
    if layout.num_ranks > 1 and record.world.rank in layout:
        _meet_in_mesh(matter, layout, record, number)


def _meet_in_mesh(matter: Proposal, layout: Layout, record: Job, number: int) -> None:
    """The ranks of a mesh; where they are all, in the meetings of the world, beside other calls."""
    if layout.num_ranks == record.world.world_size:
        _meet(matter, record)
    elif record.store is not None:
        ranks = sorted(int(rank) for rank in layout.grid.flat)
        party = Participants(record.store, record.world, ranks, f"mesh/{number}/")
        agree(matter, party, record.arrival_timeout)


def proposal_fields(
    plan: GroupPlan,
    record: Job,
    terms: GroupOptions,
    shared: GroupRegistry,
) -> dict[str, str]:
    """All that must be equal on every rank, field by field, in words."""
    layout = plan.layout
    return {
        "call": "build_mesh",
        "sizes": format_sizes(layout.sizes),
        "place": _place(terms.place),
        "ranks": _seats(layout),
        "groups": ", ".join(" ".join(axes) for axes in plan.requested) or "the usual",
        "crossing": format_sizes(terms.crossing),
        "backend": terms.backend or str(record.world.backend),
        "timeout": str(terms.limits),
        "arrival_timeout": format_timeout(record.arrival_timeout),
        "meshkit": VERSION,
        "torch": torch.__version__,
        "history": f"{dist.get_pg_count()} groups",
        **_there(shared),
    }


def _there(shared: GroupRegistry) -> dict[str, str]:
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
    return f"{format_value(ranks)} ({hashlib.sha256(ranks.tobytes()).hexdigest()[:8]})"


def coordinate_formatter(layout: Layout) -> Callable[[int], str]:
    """A rank's coordinate in words."""

    def place(rank: int) -> str:
        if rank not in layout:
            return "outside"
        return format_sizes(layout.coordinate(rank))

    return place


def _meet(matter: Proposal, record: Job) -> int:
    """Every rank of the world; 0 where torch tells no store, and there is nobody to meet."""
    if record.store is None:
        return 0
    return agree(matter, Participants.of(record.store, record.world), record.arrival_timeout)
