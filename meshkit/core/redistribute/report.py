"""Report the plan of a redistribution: steps, groups, bytes, the backward and the lower bound."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..call import quotes_call
from ..errors import SpecError
from ..group_plan import GroupPlan
from ..layout import Layout
from ..sequence import SequencePlan
from ..sizes import check_num_planned
from ..text import format_rows, format_sizes, format_table
from .digits import find_common_axes
from .move import check_axes, local_shape, make_move, merge_sizes, split_sizes, unmarked_axes
from .pattern import DOTS, Pattern, drop_axes, parse_pattern
from .plan import Plan, most_needed, most_received, plan_move

BYTES = 4  # of a float32
UNITS = ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)  # the largest first
SIZE = re.compile(r"0*[1-9][0-9]{0,17}", re.ASCII)
MESH_EXAMPLE = 'for example "dp=4 tp=2".'


@dataclass(frozen=True)
class RedistributionPlan:
    """The plan of a redistribution, from :func:`plan_redistribution`. ``print`` shows it."""

    layout: Layout  # the mesh
    pattern: Pattern  # with common factors of axes between two views
    sizes: Mapping[str, int]  # the global size of each dim
    forward: Plan  # the steps
    backward: Plan | None  # those of the gradient; None if an axis has no mark on one side

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

    def as_dict(self) -> dict[str, object]:
        """Return the plan in JSON types; bytes are those of float32."""
        plans = {"forward": self.forward, "backward": self.backward}
        return {
            "axes": self.layout.sizes,
            "pattern": str(self.pattern),
            "sizes": dict(self.sizes),
            "shapes": [list(shape) for shape in self._shapes()],
            **{name: plan and _plan_dict(plan) for name, plan in plans.items()},
            "groups": list(self.groups),
            "missing_groups": list(self.missing_groups),
        }

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the local tensors of rank 0 before and after."""
        move = self.forward.move
        first = {axis: 0 for axis, _ in move.axes}
        sides = (move.left_entries, move.shown(0)), (move.right_entries, move.shown(1))
        return [local_shape(entries, cut.shape(first)) for entries, cut in sides]

    def draw(self, *, width: int = 80, ascii: bool = False) -> str:
        """Return the plan as text."""
        axes = [axis for _, axis in unmarked_axes(self.pattern)]
        backward = f"none, since only one side names {', '.join(axes)}"
        backward = str(self.pattern.mirror) if self.backward else backward
        before, after = (" x ".join(map(str, shape)) or "a number" for shape in self._shapes())
        items = [
            ("mesh", f"{format_sizes(self.layout.sizes)}, {self.layout.num_ranks} ranks"),
            ("forward", str(self.pattern)),
            ("backward", backward),
            ("sizes", format_sizes(self.sizes) or "a single number"),
            ("shape", f"{before} -> {after} on rank 0"),
        ]
        if self.missing_groups:
            names = ", ".join(f'"{group}"' for group in self.missing_groups)
            items.append(("groups", f"build_mesh(groups=[{names}]) creates the missing ones"))
        plans = {"forward": self.forward, **({"backward": self.backward} if self.backward else {})}
        most = BYTES * max(most_received(plan) for plan in plans.values())
        unit, size = next((unit for unit in UNITS if most >= unit[1]), UNITS[-1])
        rows = []
        for name, plan in plans.items():
            shown = _plan_dict(plan)
            steps = [
                [step["step"], " ".join(step["axes"]), f"{step['bytes'] / size:.1f}", "-"]
                for step in shown["steps"]
            ]
            total, bound = (f"{shown[key] / size:.1f}" for key in ("bytes", "bound"))
            steps.append(["in all" if steps else "no step", "", total, bound])
            rows += [[name if number == 0 else "", *cells] for number, cells in enumerate(steps)]
        header = ["", "step", "over", f"{unit} a rank", "at least"]
        table = format_table(header, rows, width=width, ascii=ascii)
        return "\n".join([*format_rows(items, width=width), "", table])

    def __str__(self) -> str:
        return self.draw()


def _plan_dict(plan: Plan) -> dict[str, Any]:
    steps = [
        {"step": s.name, "axes": [*s.axes], "bytes": BYTES * most_received(Plan(plan.move, (s,)))}
        for s in plan.named_steps
    ]
    received, bound = most_received(plan), most_needed(plan.move)
    return {"steps": steps, "bytes": BYTES * received, "bound": BYTES * bound}


@quotes_call("plan_redistribution")
def plan_redistribution(
    axes: str | Mapping[str, int] | Layout,
    pattern: str,
    /,
    *,
    to: str | Mapping[str, int] | Layout | None = None,
    sizes: Mapping[str, int | SequencePlan] | None = None,
    **dims: int | SequencePlan,
) -> RedistributionPlan:
    """Plan the movement of a tensor over the axes of a mesh. Pure: no torch, no processes.

    Args:
        axes: the mesh: ``"dp=4 tp=2"``, a mapping of sizes, or a :class:`Layout`; the outermost
            axis first.
        pattern: the division before and after, as for ``mesh.redistribute``.
        to: the view of the mesh that the right side names; None is the same mesh.
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
    numbers, plans = split_sizes(parsed, merge_sizes(sizes, dims))
    _check_all_sizes(parsed, numbers)
    if to is None:
        check_axes(parsed, layout.sizes)
        unmarked, common = unmarked_axes(parsed), layout.sizes
        present = drop_axes(parsed, common)
    else:
        view = _read_layout(to)
        check_axes(Pattern(parsed.left, parsed.left), layout.sizes)
        check_axes(Pattern(parsed.right, parsed.right), view.sizes)
        views = find_common_axes(layout.sizes, view.sizes)
        parsed = present = views.rewrite(parsed)
        unmarked, common = unmarked_axes(parsed), views.sizes
        views.check_even(make_move(parsed, common, numbers, plans))
    forward = make_move(present, common, numbers, plans)
    backward = make_move(present.mirror, common, numbers, plans)
    gradient = None if unmarked else plan_move(backward)
    return RedistributionPlan(layout, parsed, numbers, plan_move(forward), gradient)


def _read_layout(axes: str | Mapping[str, int] | Layout) -> Layout:
    """Return the layout that a caller names."""
    sizes = axes
    if isinstance(axes, str):
        sizes = {}
        for word in axes.split():
            axis, _, size = word.partition("=")
            if not SIZE.fullmatch(size) or axis in sizes:
                raise SpecError(f"{word!r} is not an axis with its size.", fix=MESH_EXAMPLE)
            sizes[axis] = int(size)
    if not sizes or not isinstance(sizes, Mapping | Layout):
        raise SpecError(f"{axes!r} is not a mesh.", fix=MESH_EXAMPLE)
    layout = sizes if isinstance(sizes, Layout) else Layout(sizes)
    check_num_planned(layout.num_ranks)
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
