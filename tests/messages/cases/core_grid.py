"""Cases of errors that core/grid and core/validate.py raises."""

from __future__ import annotations

import numpy as np

from meshkit import (
    Layout,
    factor_world,
    split_world,
)
from meshkit.core.grid.axis_names import resolve_axes
from meshkit.core.grid.group_plan import GroupPlan
from meshkit.core.grid.pattern import parse_axis_pattern
from meshkit.core.grid.position import Position
from meshkit.core.grid.sizes import merge_sizes, view_sizes
from tests.messages.snapshot import unique

LAYOUT = Layout(dp=4, sp=2, tp=1)

CASES = unique(
    ("a name that is not an identifier", lambda: Layout(**{"d-p": 2})),
    ("a name with an edge underscore", lambda: Layout(dp_=2)),
    ("a name that is a keyword", lambda: factor_world(8, **{"for": 2})),
    ("a name that is an option", lambda: Layout(groups=2)),
    (
        "a name that is not a str",
        lambda: factor_world(8, order=["dp", 3], dp=8),
    ),
    ("a layout without axes", lambda: Layout()),
    ("an unknown axis in a coordinate", lambda: LAYOUT.rank(node=0, dp=0)),
    ("an unknown axis", lambda: LAYOUT.groups("dp", "ttp")),
    ("an unknown axis in a plan", lambda: GroupPlan.of(LAYOUT, ["dp pipe"])),
    ("an axis named twice", lambda: LAYOUT.size("dp", "dp")),
    ("an axis of size 0", lambda: Layout(dp=0, sp=2)),
    (
        "a size that is a str",
        lambda: factor_world(8, tp="4"),
    ),
    ("two sizes to infer", lambda: factor_world(8, tp=-1)),
    ("an axis without a standard place", lambda: factor_world(8, shard=2, tp=2)),
    ("a misspelt standard axis", lambda: factor_world(8, tpp=2)),
    (
        "an order that differs from the sizes",
        lambda: factor_world(8, sp=2, tp=2, order="dp cp tp tp"),
    ),
    ("sizes whose product is not the world size", lambda: factor_world(6, dp=4, sp=2, tp=1)),
    ("sizes whose product does not divide the world size", lambda: factor_world(6, tp=4)),
    ("sizes whose product is one rank", lambda: factor_world(6, tp=1, order="tp")),
    ("a view of another size", lambda: Layout(dp=4, sp=2).view(dp=3, sp=2)),
    ("a view out of the standard order", lambda: view_sizes({"tp": 2, "node": 2, "dp": 2}, None)),
    ("sizes that are not a mapping", lambda: merge_sizes([4, 2], {})),
    ("a size given twice", lambda: merge_sizes({"dp": 4}, {"dp": 2})),
    ("a part to infer without a world size", lambda: split_world(actor=4, critic=-1)),
    ("a split without parts", lambda: split_world(8)),
    (
        "a split of a world size that is a str",
        lambda: split_world("8", actor=4),
    ),
    ("parts that do not fill the world", lambda: split_world(8, actor=4, critic=2)),
    ("parts that leave no rank for the last", lambda: split_world(8, actor=8, critic=-1)),
    ("a view without dp", lambda: Layout(dp=4, sp=2, tp=2).view(pp=2, tp=2)),
    ("a view of one axis too short", lambda: Layout(dp=4).view(a=3)),
    ("a view that does not divide", lambda: Layout(dp=4, sp=2).view(node=3, local=-1)),
    ("a world of 0 ranks", lambda: factor_world(0, tp=2)),
    ("a coordinate without an axis", lambda: LAYOUT.rank(dp=1)),
    ("coordinates of floats", lambda: LAYOUT.coordinates(np.array([0.5]))),
    ("coordinates of a rank outside the layout", lambda: LAYOUT.coordinates([[0, 9]])),
    (
        "the coordinate of a rank outside the layout",
        lambda: Layout(dp=4, ranks=range(8, 12)).coordinate(0),
    ),
    ("a layout with a size to infer", lambda: Layout(dp=-1)),
    ("a layout of more ranks than int64", lambda: Layout(dp=2**62, tp=2)),
    (
        "a rank that is a str",
        lambda: LAYOUT.coordinate("3"),
    ),
    ("an index outside its axis", lambda: LAYOUT.rank(dp=1, sp=2, tp=0)),
    ("an index on an axis of one", lambda: LAYOUT.rank(dp=1, sp=0, tp=-1)),
    ("a pattern with an open bracket", lambda: parse_axis_pattern("(dp sp", LAYOUT.axes)),
    ("a pattern with its axes in another order", lambda: LAYOUT.rearrange("sp dp tp -> sp dp tp")),
    ("more positions than ranks", lambda: Layout(dp=4, ranks=[0, 1, 2])),
    ("a range of negative ranks", lambda: Layout(dp=8, ranks=range(-1, 7))),
    ("a negative rank", lambda: Layout(dp=8, ranks=[-1, *range(7)][::-1])),
    (
        "a rank that is a float",
        lambda: Layout(dp=8, ranks=[0.0, *range(1, 8)]),
    ),
    ("a repeated rank", lambda: Layout(dp=8, ranks=[0, 0, *range(2, 8)])),
    (
        "an axis of data that the layout does not have",
        lambda: resolve_axes("data", ("dq",), ("replicate", "shard")),
    ),
    ("experts that dp counts, too", lambda: factor_world(8, dp=8, ep=4)),
    (
        "experts that dp counts, too, in another order",
        lambda: factor_world(16, dp=8, ep=4, tp=2, order="ep dp tp"),
    ),
    ("a view with experts that dp counts, too", lambda: Layout(dp=8).view(dp=8, ep=4)),
    (
        "an order that is an int",
        lambda: factor_world(8, order=5, tp=2),
    ),
    ("a pattern without an arrow", lambda: LAYOUT.rearrange("dp sp tp")),
    (
        "a size in a pattern that is a str",
        lambda: LAYOUT.rearrange("(a b) sp tp -> a b sp tp", a="2"),
    ),
    (
        "groups that are ints",
        lambda: GroupPlan.of(LAYOUT, [5]),
    ),
    ("ranks that are empty", lambda: Layout(dp=1, ranks=[])),
    (
        "ranks that are an int",
        lambda: Layout(dp=2, ranks=5),
    ),
    ("sizes beside within", lambda: factor_world(8, dp=2, within={"tp": 4})),
    (
        "within as a list",
        lambda: factor_world(8, within=[2]),
    ),
    ("a size of 0 within nodes", lambda: factor_world(8, across={"dp": 4}, within={"tp": 0})),
    ("two sizes to infer within and across nodes", lambda: factor_world(8, within={"tp": -1})),
    (
        "data axes of a mesh with other names",
        lambda: resolve_axes("data", "dp", ("replicate", "shard")),
    ),
    ("axes with hyphens and blanks", lambda: LAYOUT.size("tp-sp dp")),
    ("axes with an open bracket", lambda: LAYOUT.size("(dp sp")),
    ("two axes instead of one", lambda: LAYOUT.neighbor(0, "dp sp")),
    ("an order of sizes that are missing", lambda: factor_world(8, order="sp")),
    ("an axis of another library", lambda: factor_world(8, dp=4, tensor_parallel=2)),
    ("a mapping out of the standard order", lambda: factor_world(8, {"tp": 2, "dp": 4})),
    ("a size that is None", lambda: factor_world(8, dp=None, tp=2)),
    (
        "the data index of a mesh with an axis of unknown role",
        lambda: Position(Layout({"dp": 2, "rows": 4}), 5).data_index,
    ),
    ("a layout of 33 axes", lambda: Layout(**{f"a{i}": 1 for i in range(33)})),
)
