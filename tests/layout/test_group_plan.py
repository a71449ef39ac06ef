"""GroupPlan and factor_world: the groups of a mesh, and the grid of a number of ranks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, factor_world, split_world
from meshkit.layout.group_plan import GroupPlan
from meshkit.synonyms import STANDARD
from meshkit.testing import sizes

PLAN = GroupPlan.of(Layout(pp=2, dp=4, sp=2, tp=1))


@pytest.mark.parametrize(
    ("layout", "groups", "axis_sets"),
    [
        (Layout(dp=4), [], "dp, "),
        (Layout(dp=4, tp=2), [], "dp tp, dp, tp, "),
        # no standard axis is absent
        (Layout(pp=1, dp=2, ep=1, cp=1, sp=1, tp=2), "pp", "all, pp, dp, ep, cp, sp, tp, 4, 3"),
        # those of dp, ep, cp and sp are together, in that order for every order of the axes
        (Layout(dp=2, ep=2, tp=2), [], "all, dp, ep, tp, dp ep, "),
        (Layout(dp=2, ep=1, sp=2, tp=2), [], "all, dp, ep, sp, tp, dp ep sp, dp sp, "),
        (Layout(cp=2, sp=2, tp=2), [], "all, cp, sp, tp, cp sp, "),
        (Layout(sp=2, tp=2, dp=2), [], "all, sp, tp, dp, dp sp, "),
        (Layout(sp=2, dp=2), [], "all, sp, dp, dp sp, "),
        (Layout(data=2, seq=2, model=2), [], "all, data, seq, model, data seq, "),
        # with an axis of unknown role, only the standard names have a group together
        (Layout(data=2, seq=2, x=2), [], "all, data, seq, x, "),
        (Layout(dp=2, x=2, sp=2), [], "all, dp, x, sp, dp sp, "),
        (Layout(pp=2, dp=2, tp=2), "dp tp", "all, pp, dp, tp, dp tp, "),
        (Layout(pp=2, dp=2, tp=2), ["dp tp", "tp dp"], "all, pp, dp, tp, dp tp, tp dp, "),
        (Layout(pp=2, dp=2, tp=2), ["dp", ("pp", "dp", "tp")], "all, pp, dp, tp, "),
    ],
)
def test_the_usual_and_the_requested_groups(
    layout: Layout, groups: list[str], axis_sets: str
) -> None:
    plan = GroupPlan.of(layout, groups)
    expected = axis_sets.replace("all", " ".join(layout.axes))
    expected = expected.replace("4, 3", "dp ep cp sp, dp cp sp")
    assert ", ".join(" ".join(axes) for axes in plan.axis_sets) == expected
    assert all(plan.has(axes) for axes in plan.axis_sets)


def test_the_group_key() -> None:
    assert PLAN.group_key(("dp",)) == ("dp",)
    assert PLAN.group_key(("tp",)) == ()
    assert PLAN.group_key(("dp", "tp", "sp")) == ("dp", "sp")
    assert PLAN.group_key(("sp", "dp")) == ("sp", "dp")
    assert PLAN.group_key(("pp", "dp", "sp", "tp")) == ("pp", "dp", "sp")
    assert PLAN.group_key(()) == ()  # one rank
    assert all(PLAN.has(axes) for axes in [("tp", "dp"), ("pp", "tp"), ("dp", "tp", "sp")])
    assert not any(PLAN.has(axes) for axes in [("sp", "dp"), ("pp", "dp"), ("tp", "sp", "dp")])


def test_axes_of_size_1_share_one_step() -> None:
    plan = GroupPlan.of(Layout(pp=1, dp=4, sp=1, tp=1), ["dp tp", "sp tp"])
    assert [step.axes for step in plan.steps] == [("pp", "dp", "sp", "tp"), ("pp",)]
    assert [step.members.shape for step in plan.steps] == [(1, 4), (4, 1)]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (factor_world(1), Layout(dp=1)),
        (factor_world(64, tp=8, sp=2), Layout(dp=4, sp=2, tp=8)),
        (factor_world(8, tp=8), Layout(dp=1, tp=8)),
        (factor_world(8, order=("tp", "dp"), tp=2), Layout(tp=2, dp=4)),
        (factor_world(8, order="sp tp", sp=4, tp=-1), Layout(sp=4, tp=2)),
        (factor_world(8, order="replicate dp", replicate=2), Layout(replicate=2, dp=4)),
        (factor_world(np.int64(8), tp=np.int32(2)), Layout(dp=4, tp=2)),
        (factor_world(128, within={"tp": 8}), Layout(dp=16, tp=8)),
        (factor_world(128, across={"dp": 16}, within={"tp": -1}), Layout(dp=16, tp=8)),
        (factor_world(12, within={"dp": 2, "tp": 2}, across={"dp": -1}), Layout(dp=6, tp=2)),
        (factor_world(12, within={"dp": -1}, across={"dp": 2}), Layout(dp=12)),
        (factor_world(8, within={}, across={}), Layout(dp=8)),
        (factor_world(8, within={"tp": np.int64(8)}), Layout(dp=1, tp=8)),
        (
            factor_world(8, within={"tp": 2}, across={"tp": 2}, order="tp dp"),
            Layout(tp=4, dp=2, ranks=[0, 2, 1, 3, 4, 6, 5, 7]),
        ),
    ],
)
def test_factor_world(layout: Layout, expected: Layout) -> None:
    assert layout == expected


@settings(deadline=None, max_examples=60, database=None)
@given(sizes(), st.data())
def test_any_one_size_can_be_inferred(expected: dict[str, int], data: st.DataObject) -> None:
    hidden = data.draw(st.sampled_from(list(expected)))
    total = math.prod(expected.values())
    open_sizes = {**expected, hidden: -1}
    assert factor_world(total, order=list(expected), **open_sizes) == Layout(**expected)
    if "dp" in expected:
        others = {axis: size for axis, size in expected.items() if axis != "dp"}
        assert factor_world(total, order=" ".join(expected), **others) == Layout(**expected)


@settings(deadline=None, database=None)
@given(st.lists(st.integers(1, 99), min_size=1, max_size=8), st.data())
def test_the_parts_hold_each_rank_once(numbers: list[int], data: st.DataObject) -> None:
    named = {f"part{index}": size for index, size in enumerate(numbers)}
    parts = split_world(sum(numbers), **named)
    assert [len(part) for part in parts.values()] == numbers
    assert [*itertools.chain(*parts.values())] == [*range(sum(numbers))]
    name = data.draw(st.sampled_from(sorted(named)))
    assert split_world(sum(numbers), **{**named, name: -1}) == parts


law = settings(deadline=None, max_examples=60, database=None)


@st.composite
def parts(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int]]:
    """Return sizes within and across nodes, of axes in any order, with dp among them."""
    axes = ["dp", *draw(st.lists(st.sampled_from(["pp", "sp", "tp"]), unique=True, max_size=2))]
    both = [(draw(st.integers(1, 3)), draw(st.integers(1, 3))) for _ in axes]
    order = draw(st.permutations([*zip(axes, both, strict=True)]))
    within = {axis: inner for axis, (inner, _) in order if inner > 1 or draw(st.booleans())}
    across = {axis: outer for axis, (_, outer) in order if outer > 1 or axis not in within}
    return within, across


def kronecker(within: dict[str, int], across: dict[str, int], axes: tuple[str, ...]) -> np.ndarray:
    """Return the grid as JAX does: a block of devices for each node, and a grid of nodes."""
    inner = np.arange(math.prod(within.values())).reshape([within.get(axis, 1) for axis in axes])
    outer = [across.get(axis, 1) for axis in axes]
    blocks = np.empty(outer, dtype=object)
    for node, position in enumerate(itertools.product(*map(range, outer))):
        blocks[position] = inner + node * inner.size
    return np.block(blocks.tolist())


@law
@given(parts())
def test_the_grid_is_that_of_jax(sizes: tuple[dict[str, int], dict[str, int]]) -> None:
    within, across = sizes
    world = math.prod(within.values()) * math.prod(across.values())
    layout = factor_world(world, within=within, across=across)
    assert layout.axes == tuple(axis for axis in STANDARD if axis in {*within, *across})
    assert layout.sizes == {a: within.get(a, 1) * across.get(a, 1) for a in layout.axes}
    assert layout.grid.tolist() == kronecker(within, across, layout.axes).tolist()


# (within, across, the recorded result of create_hybrid_device_mesh of jax 0.10.2)
RECORDED = [
    (
        {"dp": 2, "tp": 2},
        {"dp": 2, "tp": 2},
        [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]],
    ),
    (
        {"dp": 2, "sp": 1, "tp": 3},
        {"dp": 1, "sp": 2, "tp": 2},
        [
            [[0, 1, 2, 6, 7, 8], [12, 13, 14, 18, 19, 20]],
            [[3, 4, 5, 9, 10, 11], [15, 16, 17, 21, 22, 23]],
        ],
    ),
]


@pytest.mark.parametrize(("within", "across", "grid"), RECORDED)
def test_the_recorded_results_of_jax(
    within: dict[str, int], across: dict[str, int], grid: list[object]
) -> None:
    world = math.prod([*within.values(), *across.values()])
    assert factor_world(world, within=within, across=across).grid.tolist() == grid
