"""Report the plan of a redistribution: steps, groups, bytes, the backward and the lower bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from numbers import Real
from typing import Any

from ..call import drop_none, quotes_call
from ..errors import SpecError
from ..layout.group_plan import GroupPlan
from ..layout.layout import Layout
from ..layout.sequence import SequencePlan
from ..layout.sizes import check_num_planned, parse_sizes
from ..text import BYTE_UNITS, DTYPE_BYTES, MB, byte_unit, dtype_name, format_sizes, format_table
from .dim_sizes import merge_dim_sizes, split_dim_sizes
from .mesh_move import MeshMove, find_views, join_axes, make_mesh_move, sum_pattern, summed_axes
from .move import check_axes, local_shape, make_move, num_elements, unmarked_axes
from .pattern import DOTS, Pattern, Side, drop_axes, parse_pattern
from .plan import Plan, most_needed, most_received, plan_move

MESH_EXAMPLE = 'for example "dp=4 tp=2".'


@dataclass(frozen=True)
class RedistributionPlan:
    """The plan of a redistribution, from :func:`plan_redistribution`. ``print`` shows it."""

    layout: Layout  # the mesh
    pattern: Pattern  # with common factors of axes between two views
    sizes: Mapping[str, int]  # the global size of each dim
    forward: Plan  # the steps
    backward: Plan | None  # those of the gradient; None if an axis has no mark on one side
    dtype: str = "float32"  # of the tensor, for bytes

    @property
    def received(self) -> int:
        """The numbers that one rank receives in the forward, of the rank that receives most."""
        return most_received(self.forward)

    @property
    def bound(self) -> int:
        """The least number that any plan needs for it."""
        return most_needed(self.forward.move)

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups of the forward and the backward, each as its axes."""
        plans = [self.forward, *([self.backward] if self.backward else [])]
        return tuple(dict.fromkeys(" ".join(axes) for plan in plans for axes in plan.groups))

    @cached_property
    def missing_groups(self) -> tuple[str, ...]:
        """Those of the groups that ``build_mesh`` creates only on request, as in ``groups=``."""
        plan = GroupPlan.of(self.layout)
        axes = [tuple(group.split()) for group in self.groups]
        known = [group for group in axes if set(group) <= {*self.layout.axes}]
        return tuple(" ".join(group) for group in known if not plan.has(group))

    @cached_property
    def better_order(self) -> str | None:
        """An order of the axes of one cut with fewer steps in the forward, such as a/tp/dp."""
        sizes, better = self.layout.sizes, None
        fewest = before = len(self.forward.named_steps)
        if self.forward.move.reorderings or not {*self.pattern.types} <= {*sizes}:
            return None
        for place, pattern in _other_orders(drop_axes(self.pattern, sizes)):
            steps = plan_move(make_move(pattern, sizes, self.sizes)).named_steps
            if len(steps) < fewest:
                fewest, better = len(steps), place
        return better and f"{better}: {fewest} of {before} steps"

    def as_dict(self) -> dict[str, object]:
        """Return the plan in JSON types."""
        shapes = [list(shape) for shape in self._shapes()]
        return {**_fields(self), "shapes": shapes, "better_order": self.better_order}

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the local tensors of rank 0 before and after."""
        move = self.forward.move
        first = {axis: 0 for axis, _ in move.axes}
        sides = (move.left_entries, move.shown(0)), (move.right_entries, move.shown(1))
        return [local_shape(entries, cut.shape(first)) for entries, cut in sides]

    @quotes_call("plan.draw")
    def draw(self, *, width: int = 80, ascii: bool = False, speed: float | None = None) -> str:
        """Return the plan as text; with a speed of links in GB/s also the time of the bytes."""
        axes = [axis for _, axis in unmarked_axes(self.pattern)]
        unmarked = f"only one side names {', '.join(axes)}"
        before, after = (" x ".join(map(str, shape)) or "a number" for shape in self._shapes())
        shape = f"{before} -> {after} on rank 0"
        more = {"shape": shape, **drop_none(better=self.better_order)}
        return _draw(self, {"mesh": self.layout}, unmarked, more, (width, ascii, speed))

    def plan_dict(self, plan: Plan) -> dict[str, Any]:
        """Return the steps and the bytes of one direction in JSON types."""
        size = DTYPE_BYTES[self.dtype]
        received, bound = most_received(plan), most_needed(plan.move)
        return {"steps": _steps(plan, size), "bytes": size * received, "bound": size * bound}

    def __str__(self) -> str:
        return self.draw()


def _other_orders(pattern: Pattern) -> Iterator[tuple[str, Pattern]]:
    """Yield a pattern with the axes of one cut in each other order, with the cut and its side."""
    for name in ("left", "right"):
        side: Side = getattr(pattern, name)
        for dim in side.dims:
            for axes in permutations(dim.axes) if len(dim.axes) < 5 else ():
                new = {dim: dim._replace(axes=axes)}
                changed = side.rewrite(lambda item, new=new: [new.get(item, item)])  # type: ignore[misc]
                yield f"{new[dim]} on the {name}", replace(pattern, **{name: changed})


def _steps(plan: Plan, size: int) -> list[dict[str, Any]]:
    """Return the steps of a plan in JSON types, for elements of some bytes."""
    return [
        {"step": s.name, "axes": [*s.axes], "bytes": size * most_received(Plan(plan.move, (s,)))}
        for s in plan.named_steps
    ]


def draw_steps(
    directions: Mapping[str, Mapping[str, Any] | None],
    width: int,
    ascii: bool,
    speed: float | None = None,
) -> str:
    """Return the table of the steps of some plans, in the unit of the largest number."""
    if speed is not None and not (isinstance(speed, Real) and speed > 0):
        raise SpecError(f"speed is {speed!r}.", fix="a number above 0, in GB/s.")
    plans = {name: plan for name, plan in directions.items() if plan is not None}
    most = max(plan["bytes"] for plan in plans.values())
    unit = byte_unit(most)
    size = BYTE_UNITS[unit]
    rows = []
    for name, plan in plans.items():
        steps = [
            [step["step"], " ".join(step["axes"]), f"{step['bytes'] / size:.1f}", "-"]
            for step in plan["steps"]
        ]
        total, bound = (f"{plan[key] / size:.1f}" for key in ("bytes", "bound"))
        steps.append(["in all" if steps else "no step", "", total, bound])
        rows += [[name if number == 0 else "", *cells] for number, cells in enumerate(steps)]
    header = ["", "step", "over", f"{unit} a rank", "at least"]
    if speed is not None:
        counts = [n["bytes"] for plan in plans.values() for n in (*plan["steps"], plan)]
        rows = [[*row, f"{n / speed / MB:.3g}"] for row, n in zip(rows, counts, strict=True)]
        header.append(f"ms at {speed:g} GB/s")
    return format_table(rows, header, width=width, ascii=ascii)


@dataclass(frozen=True)
class MeshMovePlan:
    """The plan of a move to the ranks of another mesh, from :func:`plan_redistribution`."""

    layout: Layout  # the source
    to: Layout  # the target
    pattern: Pattern
    sizes: Mapping[str, int]  # the global size of each dim
    forward: MeshMove
    backward: MeshMove | None  # None if the pattern leaves out an axis
    dtype: str = "float32"

    @property
    def received(self) -> int:
        """The numbers that one rank of the target receives, of the rank that receives most.

        Ranks of the source that sum parts before the move receive those of the sums as well.
        """
        return self.forward.received(self.forward.busiest())

    @property
    def bound(self) -> int:
        """The numbers that this rank lacks: no plan gives it less."""
        return self.received

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups of the source that sum, and those of the target that gather copies."""
        return tuple(" ".join(axes) for _, axes in self._groups())

    @cached_property
    def missing_groups(self) -> tuple[str, ...]:
        """Those of the groups that ``build_mesh`` creates only on request, as in ``groups=``."""
        groups = self._groups()
        return tuple(" ".join(a) for layout, a in groups if not GroupPlan.of(layout).has(a))

    def _groups(self) -> list[tuple[Layout, tuple[str, ...]]]:
        """Return the axes of each group with its mesh."""
        ends = (self.layout, self.to), (self.to, self.layout)
        moves = zip((self.forward, self.backward), (self.pattern, self.pattern.mirror), strict=True)
        found = []
        for (move, pattern), (source, target) in zip(moves, ends, strict=True):
            if move is not None:
                found.append((source, summed_axes(pattern.left, source)))
                found.append((target, move.target.copy_axes))
        return [(layout, axes) for layout, axes in dict.fromkeys(found) if axes]

    def as_dict(self) -> dict[str, object]:
        """Return the plan in JSON types."""
        return {**_fields(self), "to": self.to.sizes}

    def plan_dict(self, move: MeshMove) -> dict[str, Any]:
        """Return the steps, each as the rank that receives most sees it."""
        rank, size = move.busiest(), DTYPE_BYTES[self.dtype]
        received = move.received(rank)
        sent = sum(num_elements(box) for m in move.receives(rank) for box in m.boxes)
        pattern = self.pattern if move is self.forward else self.pattern.mirror
        steps: list[dict[str, Any]] = []
        if summed_axes(pattern.left, move.source.layout):
            sums = make_move(sum_pattern(pattern.left), move.source.layout.sizes, self.sizes)
            steps += _steps(plan_move(sums), size)
        steps += [{"step": "send", "axes": [], "bytes": size * sent}] * bool(sent)
        if received > sent:
            axes = [*move.target.copy_axes]
            steps.append({"step": "all_gather", "axes": axes, "bytes": size * (received - sent)})
        before = sum(step["bytes"] for step in steps if step["step"] == "all_reduce")
        total = before + size * received
        return {"steps": steps, "bytes": total, "bound": total}

    @quotes_call("plan.draw")
    def draw(self, *, width: int = 80, ascii: bool = False, speed: float | None = None) -> str:
        """Return the plan as text; with a speed of links in GB/s also the time of the bytes."""
        unmarked = f"{', '.join(unmarked_of(self.pattern, self.layout, self.to))} has no mark"
        meshes = {"mesh": self.layout, "to": self.to}
        return _draw(self, meshes, unmarked, {}, (width, ascii, speed))

    def __str__(self) -> str:
        return self.draw()


def _directions(plan: Any) -> dict[str, dict[str, Any] | None]:  # noqa: ANN401  # of either kind
    """Return the steps and bytes of the forward and of the backward, in JSON types."""
    backward = None if plan.backward is None else plan.plan_dict(plan.backward)
    return {"forward": plan.plan_dict(plan.forward), "backward": backward}


def _fields(plan: RedistributionPlan | MeshMovePlan) -> dict[str, object]:
    """Return the fields that both kinds of plans have, in JSON types."""
    return {
        "axes": plan.layout.sizes,
        "pattern": str(plan.pattern),
        "sizes": dict(plan.sizes),
        "dtype": plan.dtype,
        **_directions(plan),
        "groups": list(plan.groups),
        "missing_groups": list(plan.missing_groups),
    }


def _draw(
    plan: RedistributionPlan | MeshMovePlan,
    meshes: Mapping[str, Layout],
    unmarked: str,
    more: Mapping[str, object],
    columns: tuple[int, bool, float | None],
) -> str:
    """Return a plan as text; ``unmarked`` says why it has no backward."""
    items = [(n, f"{format_sizes(m.sizes)}, {m.num_ranks} ranks") for n, m in meshes.items()]
    items += [
        ("forward", str(plan.pattern)),
        ("backward", str(plan.pattern.mirror) if plan.backward else f"none, since {unmarked}"),
        ("sizes", format_sizes(plan.sizes) or "a single number"),
        *((name, str(text)) for name, text in more.items()),
    ]
    if plan.missing_groups:
        names = ", ".join(f'"{group}"' for group in plan.missing_groups)
        items.append(("groups", f"build_mesh(groups=[{names}]) creates the missing ones"))
    facts = format_table(items, width=columns[0])
    return "\n".join([facts, "", draw_steps(_directions(plan), *columns)])


def unmarked_of(pattern: Pattern, source: Layout, target: Layout) -> list[str]:
    """Return the axes longer than 1 that their side of a pattern leaves out."""
    sides = (pattern.left, source), (pattern.right, target)
    return [
        axis
        for side, layout in sides
        for axis, size in layout.sizes.items()
        if size > 1 and axis not in side.types
    ]


@quotes_call("plan_redistribution")
def plan_redistribution(
    axes: str | Mapping[str, int] | Layout,
    pattern: str,
    /,
    *,
    to: str | Mapping[str, int] | Layout | None = None,
    dtype: object = "float32",
    sizes: Mapping[str, int | SequencePlan] | None = None,
    **dims: int | SequencePlan,
) -> RedistributionPlan | MeshMovePlan:
    """Plan the movement of a tensor over the axes of a mesh. Pure: no torch, no processes.

    Args:
        axes: the mesh: ``"dp=4 tp=2"``, a mapping of sizes, or a :class:`Layout`; the outermost
            axis first. Commas separate axes as blanks do.
        pattern: the division before and after, as for ``mesh.redistribute``.
        to: the mesh that the right side names; None is the same one. A text or a mapping stands for
            other ranks, after those of the mesh. A :class:`Layout` says its ranks; with equal ranks
            it is a view.
        dtype: the dtype of the tensor, for bytes: ``"bf16"``, ``"float32"`` or a dtype of torch.
        sizes: the sizes of dims that are called like an argument, as in ``sizes={"to": 8}``.
        **dims: the global size of each dim, or a :class:`SequencePlan` for a sequence that is cut
            in its order.

    Raises:
        SpecError: if the pattern or a size is invalid.
        UnknownAxisError: if the pattern names an axis that the mesh does not have.
        CoordinateError: if a mark names a coordinate outside its axis.

    Cost: O(axes x dims) for the plan, O(ranks) for the largest number over all ranks.

    Example:
        >>> plan = plan_redistribution("dp=4 tp=2", "o/dp i -> o i *dp", o=4096, i=4096)
        >>> plan.received, plan.bound, plan.groups
        (12582912, 12582912, ('dp',))
    """
    layout = _read_layout(axes)
    parsed = parse_pattern(pattern)
    numbers, plans = split_dim_sizes(parsed, merge_dim_sizes(sizes, dims))
    _check_all_sizes(parsed, numbers)
    name = _read_dtype(dtype)
    if to is None:
        check_axes(parsed, layout.sizes)
        unmarked, common = unmarked_axes(parsed), layout.sizes
        present = drop_axes(parsed, common)
    else:
        first = 1 + int(layout.grid.max())
        other = _read_layout(to, first)
        check_axes(Pattern(parsed.left, parsed.left), layout.sizes)
        check_axes(Pattern(parsed.right, parsed.right), other.sizes)
        views = find_views(layout, other)
        if views is None:
            return _plan_mesh_move(layout, other, parsed, numbers, plans, name)
        parsed = present = views.rewrite(parsed)
        unmarked, common = unmarked_axes(parsed), views.sizes
        views.check_even(make_move(parsed, common, numbers, plans))
    forward = make_move(present, common, numbers, plans)
    backward = make_move(present.mirror, common, numbers, plans)
    gradient = None if unmarked else plan_move(backward)
    return RedistributionPlan(layout, parsed, numbers, plan_move(forward), gradient, name)


def _plan_mesh_move(
    source: Layout,
    target: Layout,
    pattern: Pattern,
    sizes: Mapping[str, int],
    plans: Mapping[str, SequencePlan],
    dtype: str,
) -> MeshMovePlan:
    """Return the plan of a move to other ranks."""
    joined = join_axes(pattern, source.sizes, target.sizes)
    forward, backward = make_mesh_move(joined, source, target, sizes, plans), None
    if not unmarked_of(pattern, source, target):
        mirror = join_axes(pattern.mirror, target.sizes, source.sizes)
        backward = make_mesh_move(mirror, target, source, sizes, plans)
    return MeshMovePlan(source, target, pattern, sizes, forward, backward, dtype)


def _read_dtype(dtype: object) -> str:
    """Return the name of a known dtype."""
    name = dtype_name(dtype)
    if name not in DTYPE_BYTES:
        raise SpecError(f"dtype is {dtype!r}.", fix='dtype="bfloat16", for example.')
    return name


def _read_layout(axes: str | Mapping[str, int] | Layout, first: int = 0) -> Layout:
    """Return the layout that a caller names; sizes stand for ranks from the first one on."""
    sizes = parse_sizes(axes.split()) if isinstance(axes, str) else axes
    if not sizes or not isinstance(sizes, Mapping | Layout):
        raise SpecError(f"{axes!r} is not a mesh.", fix=MESH_EXAMPLE)
    layout = sizes if isinstance(sizes, Layout) else Layout(sizes)
    check_num_planned(layout.num_ranks)
    if first and not isinstance(sizes, Layout):
        return Layout(sizes, ranks=range(first, first + layout.num_ranks))
    return layout


def _check_all_sizes(pattern: Pattern, sizes: Mapping[str, int]) -> None:
    names = [dim.name for dim in pattern.left.dims]
    if DOTS in names:
        raise SpecError("the dims of an ellipsis are unknown.", fix="a name for each of them.")
    missing = [name for name in names if name not in sizes]
    if missing:
        taken = [name for name in missing if name in ("to", "sizes")]
        words = [f"{name}=4096" for name in missing if name not in taken]
        if taken:
            words.insert(0, f"sizes={dict.fromkeys(taken, 4096)}")
        noun, verb = ("size", "is") if len(missing) == 1 else ("sizes", "are")
        summary = f"the {noun} of {', '.join(missing)} {verb} missing."
        raise SpecError(summary, fix=f"global {noun}, for example {', '.join(words)}.")
