"""GroupPlan: the process groups that a mesh needs, in one order for all ranks, each once.

A plan is the same on every rank. The live part creates the groups of its steps, one after the
other, and computes nothing. For ``Layout(dp=4, sp=2, tp=1)`` on a world of 8::

    axes        groups
    ()          the default group: the whole world, in order
    (dp,)       4 x 2: two groups of four are created
    (sp,)       2 x 4: four groups of two are created
    (tp,)       a group of one on each rank
    (dp, sp)    the default group again

Axes may be partly within nodes and partly across them, as in the hybrid meshes of JAX::

    within={"dp": 2, "tp": 2}, across={"dp": 2}          tp=0  tp=1
                                                   dp=0    0     1    node 0
    dp = 2 across * 2 within = 4                   dp=1    2     3
    coordinate = outer * 2 + inner                 dp=2    4     5    node 1
                                                   dp=3    6     7
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..call import Call, either, parse_integer, quotes_call
from ..errors import CALL, SpecError
from ..synonyms import STANDARD
from ..text import Ints, article, count_noun
from .axes import check_axes_exist, gradient_axes, in_order, parse_axes, unknown_axes
from .layout import Layout
from .ranks import RankPositions
from .sizes import (
    Order,
    check_num_ranks,
    check_one_inferred,
    check_sizes,
    guess_size,
    infer_sizes,
    order_axes,
    ordered_sizes,
    read_sizes,
    view_sizes,
)

Axes = tuple[str, ...]
GroupNames = str | Sequence[str | Iterable[str]] | None
Sizes = Mapping[str, int]


@quotes_call("factor_world")
def factor_world(
    world_size: int,
    sizes: Sizes | None = None,
    *,
    order: Order = None,
    within: Sizes | None = None,
    across: Sizes | None = None,
    **axes: int,
) -> Layout:
    """Factor a number of ranks into a layout. Pure arithmetic: no torch, no processes.

    Args:
        world_size: the number of ranks.
        sizes: axis name to size, for example from a config, instead of ``**axes``. The names may be
            any: axes nest as written, the outermost first, with standard axes among them in the
            standard order. If all names are standard, it is the same as ``**axes``.
        order: axis names, the outermost first: ``"tp dp"``, ``"tp,dp"``, ``("tp", "dp")``, or in
            Megatron's spelling, the fastest-varying axis first, ``"dp-tp"``. None is the standard
            order ``pp dp ep cp sp tp``; the order of the keywords does not matter.
        **axes: axis name to size; one may be -1. ``dp`` is inferred if it is left out, unless
            ``order`` leaves it out too. A name that is not standard needs ``order``.
        within: instead of ``sizes``: axis to its size on one node. Their product is the number of
            ranks of a node, which are consecutive.
        across: axis to its size over nodes. An axis may have both, and its size is
            ``across * within``, its coordinate ``outer * within + inner``. If nothing gives
            ``dp``, it is inferred across nodes. These are the ``mesh_shape`` and
            ``dcn_mesh_shape`` of JAX's ``create_hybrid_device_mesh``, the ``ici_`` and ``dcn_``
            sizes of MaxText.

    Raises:
        SpecError: if names, sizes, order and world size do not fit together, or an axis has no
            standard position and ``order`` is None.

    Cost: O(axes); with ``within`` or ``across`` O(ranks).

    Example:
        >>> factor_world(64, tp=8, sp=2)
        Layout(dp=4, sp=2, tp=8)
        >>> factor_world(8, order="tp dp", tp=2), factor_world(8, {"data": 4, "model": 2})
        (Layout(tp=2, dp=4), Layout(data=4, model=2))
        >>> factor_world(8, within={"pp": 2, "tp": 2}, across={"dp": 2}).grid.tolist()
        [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    num_ranks = parse_integer(world_size)
    if num_ranks is None or num_ranks < 1:
        line = f"world_size is {world_size!r}."
        guess = guess_size(world_size)
        is_whole = guess > 1 and str(world_size) in (f"{guess}", f"{guess}.0")
        fix = f"{guess}." if is_whole else "an int of 1 or more."
        raise SpecError(line, fix=fix, sizes=dict(axes))
    merged, order = read_sizes(sizes, axes, order)
    check_num_ranks(num_ranks, merged)
    evidence = f"world_size = {num_ranks}"
    if within is not None or across is not None:
        return _hybrid_layout(num_ranks, merged, within, across, order)
    return Layout.of(infer_sizes(ordered_sizes(merged, order, num_ranks), num_ranks, evidence))


def _hybrid_layout(
    num_ranks: int,
    sizes: Mapping[str, object],
    within: Sizes | None,
    across: Sizes | None,
    order: Order,
) -> Layout:
    """Return the layout of sizes within and across nodes; see :func:`factor_world`."""
    if sizes:
        line = f"{CALL} gives {', '.join(sizes)} in addition to within and across."
        known = across if isinstance(across, Mapping) else {}
        fix = f"across={ {**known, **sizes}!r}; or use within for sizes on one node."
        raise SpecError(line, fix=fix, sizes=dict(sizes))
    inner, outer = _parse_part("within", within), _parse_part("across", across)
    names = order_axes(dict.fromkeys((*outer, *inner), 1), order)
    if "dp" in names and "dp" not in {*outer, *inner}:
        outer["dp"] = -1
    parts = {f"across {name}": outer[name] for name in names if name in outer}
    parts |= {f"within {name}": inner[name] for name in names if name in inner}
    unknown = [part for part, size in parts.items() if size == -1]
    if len(unknown) > 1:
        line = f"{CALL} leaves {' and '.join(unknown)} open."
        hint = "Only one size can be inferred; dp is inferred across nodes if it is left out."
        raise SpecError(line, hint, fix=f"a size for {' and '.join(unknown[1:])}.")
    known = infer_sizes(parts, num_ranks, f"world_size = {num_ranks}")
    outer_sizes = [known.get(f"across {name}", 1) for name in names]
    inner_sizes = [known.get(f"within {name}", 1) for name in names]
    total = {n: a * b for n, a, b in zip(names, outer_sizes, inner_sizes, strict=True)}
    # ranks run along all outer sizes, then along all inner ones; numpy arrays have few dims
    pairs = [pair for part in (outer_sizes, inner_sizes) for pair in enumerate(part) if pair[1] > 1]
    dims = sorted(range(len(pairs)), key=lambda dim: pairs[dim][0])  # stable: outer before inner
    ranks = np.arange(num_ranks).reshape([size for _, size in pairs]).transpose(dims)
    return Layout(total, ranks=ranks.ravel())


def _parse_part(option: str, sizes: Sizes | None) -> dict[str, int]:
    """Return the sizes of one option as plain ints, each 1 or more, or -1."""
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        line = f"{option} is {article(type(sizes).__name__)}."
        raise SpecError(line, fix=f"a dict from axis to size, such as {option}={{'dp': 2}}.")
    return check_sizes(sizes) if sizes else {}


@quotes_call("split_world")
def split_world(world_size: int | None = None, /, **parts: int) -> dict[str, range]:
    """Return consecutive ranks for each part of a job. Pure arithmetic.

    Several models in one job, as in reinforcement learning, each have their own ranks. Every rank
    calls ``build_mesh`` once for each part, and uses those meshes that contain it
    (``mesh.inside``).

    Args:
        world_size: the number of ranks; None means the sum of the parts.
        **parts: the name of a part to its number of ranks; with a world size one may be -1.

    Returns:
        Name to range, for ``build_mesh(ranks=...)``, in the order written.

    Raises:
        SpecError: if a number is invalid, or the parts do not add up to the world.

    Cost: O(parts).

    Example:
        >>> split_world(16, actor=8, critic=4, reference=-1)
        {'actor': range(0, 8), 'critic': range(8, 12), 'reference': range(12, 16)}
    """
    if not parts:
        fix = f"for example actor={4 if world_size is None else -1}."
        raise SpecError(f"{CALL} names no part.", fix=fix)
    sizes = check_sizes(parts, any_name=True)
    check_one_inferred(sizes)
    known = sum(size for size in sizes.values() if size != -1)
    unknown = [name for name, size in sizes.items() if size == -1]
    total = known if world_size is None and not unknown else parse_integer(world_size)
    if total is None:
        nothing = f"there is nothing to infer {' '.join(unknown)} from"
        line = f"{nothing if world_size is None else f'world_size is {world_size!r}'}."
        fix = f"for example {Call('split_world', (known + len(unknown),), sizes)}."
        raise SpecError(line, fix=fix)
    left = total - known
    if left < len(unknown) or (left and not unknown):
        last = unknown[0] if unknown else next(reversed(sizes))
        fitting = left if unknown else left + sizes[last]
        ways = [f"start {known + len(unknown)} ranks"]
        ways += [f"{last}={fitting}"] if fitting > 0 else []
        terms = " + ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
        line = f"the parts have {known} ranks, the world has {total}."
        raise SpecError(line, f"{terms} = {known}.", fix=either(*ways))
    sizes.update(dict.fromkeys(unknown, left))
    ends = accumulate(sizes.values())
    return {name: range(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}


class GroupSet(NamedTuple):
    """All groups over one set of axes, which are created together."""

    axes: Axes  # the first of the axis sets that share these groups
    members: Ints  # int64 (num_groups, group_size), the ranks of each group in order


@dataclass(frozen=True)
class GroupPlan:
    """The groups to create for a mesh. Make it with :meth:`of`."""

    layout: Layout
    # the axes of every group that can be looked up, each once: all axes, every axis, the axes over
    # which gradients are averaged, those of experts, the requested ones, and none, for standard
    # axes that are absent. A set that has no axis longer than 1 is a group of one rank
    axis_sets: tuple[Axes, ...]
    # the axes of the groups that the caller requested in addition, as written
    requested: tuple[Axes, ...]

    @classmethod
    def of(cls, layout: Layout, groups: str | Sequence[str | Iterable[str]] = ()) -> GroupPlan:
        """Return the plan for a layout, with the requested groups beside the usual ones."""
        listed = _parse_groups([groups] if isinstance(groups, str) else groups) if groups else ()
        for axes in listed:
            check_axes_exist(axes, layout.axes)
        requested = tuple(names for axes in listed if (names := _drop_absent(axes, layout)))
        usual: list[Axes] = [layout.axes, *((axis,) for axis in layout.axes)]
        sizes = layout.sizes
        if unknown_axes(sizes):  # then only the standard names have groups together
            sizes = {axis: size for axis, size in sizes.items() if axis in STANDARD}
        usual += [gradient_axes(sizes), gradient_axes(sizes, experts=True)]
        axis_sets = dict.fromkeys(axes for axes in (*usual, *requested) if axes)
        absent: list[Axes] = [()] * any(axis not in layout.axes for axis in STANDARD)
        return cls(layout, (*axis_sets, *absent), requested)

    def has(self, axes: Axes) -> bool:
        """Return whether the plan has the group over these axes; those of size 1 change none."""
        return self.group_key(axes) in self.keys.values()

    def group_key(self, axes: Axes) -> Axes:
        """Return the axes longer than 1, in the caller's order: equal keys mean equal groups."""
        sizes = self.layout.sizes
        return tuple(axis for axis in axes if sizes.get(axis, 1) > 1)

    @cached_property
    def keys(self) -> dict[Axes, Axes]:
        """Each axis set with its axes longer than 1. Equal keys mean equal groups."""
        return {axes: self.group_key(axes) for axes in self.axis_sets}

    @cached_property
    def steps(self) -> tuple[GroupSet, ...]:
        """The groups to create, in order, each set of groups once. O(ranks) for each step."""
        first: dict[Axes, Axes] = {}
        for axes, key in self.keys.items():
            first.setdefault(key, axes)
        return tuple(GroupSet(axes, self.layout.groups(axes)) for axes in first.values())


def plan_groups(
    sizes: Mapping[str, object],
    world_size: int,
    evidence: str,
    *,
    order: Order = None,
    groups: GroupNames = None,
    ranks: Sequence[int] | Ints | None = None,
    within: Sizes | None = None,
    across: Sizes | None = None,
) -> GroupPlan:
    """Return the layout and the groups of a mesh. Pure."""
    __tracebackhide__ = True
    if within is not None or across is not None:
        if ranks is not None and not sizes:
            fix = "leave out ranks, or give axes by size beside ranks."
            raise SpecError(f"{CALL} gives ranks beside within and across.", fix=fix)
        layout = _hybrid_layout(world_size, sizes, within, across, order)
    elif ranks is None:
        ordered = ordered_sizes(sizes, order, world_size)
        inferred = infer_sizes(ordered, world_size, evidence, takes_ranks=True)
        layout = Layout.of(inferred)
    else:
        positions = RankPositions.of(ranks, None)
        ordered = ordered_sizes(sizes, order, len(positions))
        check_in_world(int(positions.array().max()), world_size, evidence)
        held = f"ranks has {len(positions)}"
        inferred = infer_sizes(ordered, len(positions), held, owner="ranks=", start="")
        layout = Layout.of(inferred, positions)
    return GroupPlan.of(layout, groups or ())


def plan_view(
    layout: Layout, sizes: Mapping[str, object], order: Order, groups: GroupNames
) -> GroupPlan:
    """Return the plan of a view: the same ranks in the same order, with other axes. Pure."""
    ordered = view_sizes(check_sizes(sizes), order)
    evidence = f"{layout!r} has {layout.num_ranks} ranks"
    inferred = infer_sizes(ordered, layout.num_ranks, evidence, owner="the mesh", start="")
    return GroupPlan.of(Layout.of(inferred, layout.rank_positions), groups or ())


def edge_rounds(size: int, *, wrap: bool = False) -> list[list[tuple[int, int]]]:
    """Return the directed edges between neighbors of an axis in rounds. Pure.

    No coordinate is in two edges of a round. The groups of a round are created together. The edges
    of a ring without those of the line have rounds of their own: a line and a ring share groups.

    Example:
        >>> edge_rounds(4)
        [[(0, 1), (2, 3)], [(1, 0), (3, 2)], [(1, 2)], [(2, 1)]]
        >>> edge_rounds(3, wrap=True)[-2:]
        [[(2, 0)], [(0, 2)]]
    """
    forward = [[(a, a + 1) for a in range(first, size - 1, 2)] for first in (0, 1)]
    forward += [[(size - 1, 0)]] if wrap and size > 2 else []
    both = [(edges, [(b, a) for a, b in edges]) for edges in forward if edges]
    return [edges for pair in both for edges in pair]


def check_in_world(highest: int, world_size: int, evidence: str, *, fix: str = "") -> None:
    """Raise if a rank is outside the world."""
    if highest >= world_size:
        raise SpecError(
            f"rank {highest} is outside the world.",
            f"The world has {count_noun(world_size, 'rank')}, numbered from 0; {evidence}.",
            fix=fix or f"ranks=range({world_size}), or a part of it.",
            world_size=world_size,
            num_ranks=highest + 1,
        )


def parse_group(plan: GroupPlan, names: object) -> Axes:
    """Return the axes of a group of the plan, or raise if it has no group over them."""
    axes = parse_axes(names)
    check_axes_exist(axes, plan.layout.axes)
    if not plan.has(axes):
        raise missing_group_error(plan, axes)
    return axes


def missing_group_error(plan: GroupPlan, axes: Axes, built_by: Call | None = None) -> SpecError:
    """Return the error for a group that was not requested."""
    existing = ", ".join(f"({' '.join(names)})" for names in plan.axis_sets if names)
    groups = [" ".join(names) for names in (*plan.requested, _drop_absent(axes, plan.layout))]
    return SpecError(
        f"the mesh has no group over {' '.join(axes)}.",
        f"It has groups over {existing}; a getter never creates one.",
        fix=f"{built_by.name if built_by else 'build_mesh'}(..., groups={groups}).",
        sizes=plan.layout.sizes,
    )


def _drop_absent(axes: Axes, layout: Layout) -> Axes:
    """Return the axes without the standard ones that a layout does not have."""
    return tuple(axis for axis in axes if axis in layout.axes)


def _parse_groups(groups: object) -> tuple[Axes, ...]:
    if isinstance(groups, Iterable):
        axis_sets = in_order(groups)
        if all(isinstance(names, Iterable) for names in axis_sets):
            return tuple(parse_axes(names) for names in axis_sets)
    raise SpecError("groups is not a list of axis sets.", fix='for example groups=["dp tp"].')
