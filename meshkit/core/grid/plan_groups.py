"""Plan the groups of a mesh from the request of a caller: all validation that needs no process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..arrays import Ints
from ..errors import CALL, Change, SpecError
from ..text import count_noun
from .factor import ordered_sizes
from .group_plan import GroupPlan
from .hybrid import check_no_plain_sizes, hybrid_layout
from .layout import Layout
from .order import view_sizes
from .rank_order import RankOrder
from .sizes import check_sizes, infer_sizes

Order = str | Iterable[str] | None
GroupNames = str | Sequence[str | Iterable[str]] | None


def plan_groups(
    sizes: Mapping[str, object],
    world_size: int,
    evidence: str,
    *,
    order: Order = None,
    groups: GroupNames = None,
    ranks: Sequence[int] | Ints | None = None,
    within: Mapping[str, int] | None = None,
    across: Mapping[str, int] | None = None,
) -> GroupPlan:
    """Return the layout and the groups of a mesh. Pure.

    Args:
        sizes: axis name to size.
        world_size: the number of ranks of the world.
        evidence: the source of that number, for errors: ``"WORLD_SIZE = 6 (torchrun)"``.
        order: axis names from the outside in; None is the standard order.
        groups: groups beyond the default ones.
        ranks: the ranks of the mesh by position; None means the whole world.
        within: axis to its size on one node, instead of ``sizes``.
        across: axis to its size over nodes.

    Raises:
        SpecError: if names, sizes, order, ranks or groups are invalid or do not fit.
        UnknownAxisError: if ``groups`` names an axis that the mesh does not have.
    """
    if within is not None or across is not None:
        check_no_plain_sizes(sizes, across)
        if ranks is not None:
            fix = (Change(ranks=None), ", or axes by size beside ranks.")
            raise SpecError(f"{CALL} gives ranks beside within and across.", fix=fix)
        layout = hybrid_layout(world_size, within, across, order)
    elif ranks is None:
        inferred = infer_sizes(ordered_sizes(sizes, order), world_size, evidence)
        layout = Layout(ranks=None, **inferred)
    else:
        ordered, positions = ordered_sizes(sizes, order), RankOrder.of(ranks, None)
        check_in_world(int(positions.array().max()), world_size, evidence)
        held = f"ranks has {len(positions)}"
        inferred = infer_sizes(ordered, len(positions), held, owner="ranks=", can_start=False)
        layout = Layout(ranks=positions.ranks, **inferred)
    return GroupPlan.of(layout, () if groups is None else groups)


def plan_view(
    layout: Layout, sizes: Mapping[str, object], order: Order, groups: GroupNames
) -> GroupPlan:
    """Return the plan of a view: the same ranks in the same order, with other axes. Pure.

    Args:
        layout: the layout of the mesh.
        sizes: axis name to size, the outermost axis first; one may be -1.
        order: axis names from the outside in; None keeps the order of ``sizes``.
        groups: groups beyond the default ones.

    Raises:
        SpecError: if sizes, order or groups are invalid or do not fit.
        UnknownAxisError: if ``groups`` names an axis that the view does not have.
    """
    ordered = view_sizes(check_sizes(sizes), order)
    evidence = f"{layout!r} has {layout.num_ranks} ranks"
    inferred = infer_sizes(ordered, layout.num_ranks, evidence, owner="the mesh", can_start=False)
    return GroupPlan.of(Layout(ranks=layout.ranks, **inferred), groups or ())


def check_in_world(highest: int, world_size: int, evidence: str, *, fix: str = "") -> None:
    """Raise if a rank is outside the world.

    Args:
        highest: the highest rank.
        world_size: the number of ranks of the world.
        evidence: the source of that number, for the error.
        fix: the fix; empty proposes ``ranks=``.

    Raises:
        SpecError: with the ranks of the world.
    """
    if highest >= world_size:
        raise SpecError(
            f"rank {highest} is outside the world.",
            f"The world has {count_noun(world_size, 'rank')}, numbered from 0; {evidence}.",
            fix=fix or f"ranks=range({world_size}), or a part of it.",
            world_size=world_size,
        )
