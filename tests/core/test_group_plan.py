"""GroupPlan and factor_world: the groups of a mesh, and the grid of a number of ranks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, Topology, factor_world, split_world
from meshkit.core.axes import STANDARD
from meshkit.core.group_plan import GroupPlan
from meshkit.core.topology import crossings
from meshkit.testing import sizes

PLAN = GroupPlan.of(Layout(pp=2, dp=4, sp=2, tp=1))


def test_the_usual_groups() -> None:
    single = (("pp",), ("dp",), ("sp",), ("tp",))
    assert PLAN.axis_sets == (("pp", "dp", "sp", "tp"), *single, ("dp", "sp"), ())
    assert GroupPlan.of(Layout(dp=4)).axis_sets == (("dp",), ())
    assert GroupPlan.of(Layout(dp=4, tp=2)).axis_sets == (("dp", "tp"), ("dp",), ("tp",), ())
    assert GroupPlan.of(Layout(dp=4, sp=2)).axis_sets == (("dp", "sp"), ("dp",), ("sp",), ())
    every = GroupPlan.of(Layout(pp=1, dp=2, ep=1, cp=1, sp=1, tp=2))
    assert () not in every.axis_sets  # no standard axis is absent


def test_gradients_are_averaged_over_dp_ep_cp_sp_if_present() -> None:
    both = GroupPlan.of(Layout(dp=2, ep=2, cp=2, sp=2, tp=2)).axis_sets[-3:-1]
    assert both == (("dp", "ep", "cp", "sp"), ("dp", "cp", "sp"))
    # with one rank along ep, both names are one group
    alone = GroupPlan.of(Layout(dp=2, ep=1, sp=2, tp=2))
    assert alone.axis_sets[-3:-1] == (("dp", "ep", "sp"), ("dp", "sp"))
    assert len(alone.steps) == len(GroupPlan.of(Layout(dp=2, sp=2, tp=2)).steps)  # one of one each
    assert GroupPlan.of(Layout(data=2, seq=2, model=2)).axis_sets[-2] == ("data", "seq")
    # with an axis of unknown role, only the standard names have a group together
    assert GroupPlan.of(Layout(data=2, seq=2, x=2)).axis_sets[-2] == ("x",)
    assert GroupPlan.of(Layout(dp=2, x=2, sp=2)).axis_sets[-2] == ("dp", "sp")
    assert GroupPlan.of(Layout(dp=2, cp=2, tp=2)).axis_sets[-2] == ("dp", "cp")
    assert GroupPlan.of(Layout(cp=2, sp=2, tp=2)).axis_sets[-2] == ("cp", "sp")
    # in that order, for every order of the axes
    assert GroupPlan.of(Layout(sp=2, tp=2, dp=2)).axis_sets[-2] == ("dp", "sp")
    assert GroupPlan.of(Layout(sp=2, dp=2)).axis_sets[1:-1] == (("sp",), ("dp",), ("dp", "sp"))


def test_requested_groups() -> None:
    layout = Layout(pp=2, dp=2, tp=2)
    plan = GroupPlan.of(layout, ["dp tp"])
    assert plan.axis_sets == (layout.axes, ("pp",), ("dp",), ("tp",), ("dp", "tp"), ())
    assert plan.requested == (("dp", "tp"),)
    assert GroupPlan.of(layout, [("dp", "tp")]) == plan == GroupPlan.of(layout, "dp tp")
    assert GroupPlan.of(layout, ["dp tp", "tp dp"]).axis_sets[-3:-1] == (("dp", "tp"), ("tp", "dp"))
    assert GroupPlan.of(layout, ["dp", "pp dp tp"]).axis_sets == GroupPlan.of(layout).axis_sets


def test_the_group_key() -> None:
    assert PLAN.group_key(("dp",)) == ("dp",)
    assert PLAN.group_key(("tp",)) == ()
    assert PLAN.group_key(("dp", "tp", "sp")) == ("dp", "sp")
    assert PLAN.group_key(("sp", "dp")) == ("sp", "dp")
    assert PLAN.group_key(("pp", "dp", "sp", "tp")) == ("pp", "dp", "sp")
    assert PLAN.group_key(()) == ()  # one rank


def test_an_axis_of_size_1_changes_no_group_so_it_need_not_be_requested() -> None:
    plan = GroupPlan.of(Layout(pp=2, dp=4, sp=2, tp=1))
    usual = [(), ("pp",), ("tp",), ("dp", "sp"), ("pp", "dp", "sp", "tp")]
    with_tp = [("dp", "tp"), ("tp", "dp"), ("pp", "tp"), ("dp", "tp", "sp"), ("cp", "tp")]
    assert all(plan.has(axes) for axes in usual + with_tp)
    missing = [("sp", "dp"), ("sp", "tp", "dp"), ("pp", "dp"), ("tp", "sp", "dp", "pp")]
    assert not any(plan.has(axes) for axes in missing)
    longer = GroupPlan.of(Layout(pp=2, dp=4, sp=2, tp=2))
    assert not any(longer.has(axes) for axes in with_tp[:4])
    assert GroupPlan.of(Layout(pp=1, dp=1, tp=1)).has(("tp", "pp"))


def test_the_steps_are_in_order_and_create_each_set_of_groups_once() -> None:
    steps = {step.axes: step.members.tolist() for step in PLAN.steps}
    assert list(steps) == [PLAN.layout.axes, ("pp",), ("dp",), ("sp",), ("tp",), ("dp", "sp")]
    assert steps[PLAN.layout.axes] == [[*range(16)]]
    assert steps[("pp",)] == [[i, i + 8] for i in range(8)]
    assert steps[("dp",)] == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert steps[("sp",)] == [[i, i + 1] for i in range(0, 16, 2)]
    assert steps[("tp",)] == [[i] for i in range(16)]
    assert steps[("dp", "sp")] == [[*range(8)], [*range(8, 16)]]


def test_axes_of_size_1_share_one_step() -> None:
    plan = GroupPlan.of(Layout(pp=1, dp=4, sp=1, tp=1), ["dp tp", "sp tp"])
    assert [step.axes for step in plan.steps] == [("pp", "dp", "sp", "tp"), ("pp",)]
    assert [step.members.shape for step in plan.steps] == [(1, 4), (4, 1)]
    alone = GroupPlan.of(Layout(dp=1, tp=1))
    assert [(step.axes, step.members.tolist()) for step in alone.steps] == [(("dp", "tp"), [[0]])]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (factor_world(8), Layout(dp=8)),
        (factor_world(1), Layout(dp=1)),
        (factor_world(64, tp=8, sp=2), Layout(dp=4, sp=2, tp=8)),
        (factor_world(64, tp=8, pp=2), Layout(pp=2, dp=4, tp=8)),
        (factor_world(8, dp=4, tp=-1), Layout(dp=4, tp=2)),
        (factor_world(8, tp=8), Layout(dp=1, tp=8)),
        (factor_world(8, dp=-1, tp=2), Layout(dp=4, tp=2)),
        (factor_world(8, order="tp dp", tp=2), Layout(tp=2, dp=4)),
        (factor_world(8, order=("tp", "dp"), tp=2), Layout(tp=2, dp=4)),
        (factor_world(8, order="sp tp", sp=4, tp=2), Layout(sp=4, tp=2)),
        (factor_world(8, order="sp tp", sp=4, tp=-1), Layout(sp=4, tp=2)),
        (factor_world(8, order="replicate dp", replicate=2), Layout(replicate=2, dp=4)),
        (factor_world(np.int64(8), tp=np.int32(2)), Layout(dp=4, tp=2)),
    ],
)
def test_factor_world(layout: Layout, expected: Layout) -> None:
    assert layout == expected
    assert layout.ranks == range(layout.num_ranks)


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


def test_a_world_has_at_most_2_to_the_31_ranks() -> None:
    assert factor_world(2**31).num_ranks == 2**31
    with pytest.raises(SpecError):
        factor_world(2**31 + 1)


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


@law
@given(parts())
def test_the_inner_part_is_the_slot_and_the_outer_part_the_node(
    sizes: tuple[dict[str, int], dict[str, int]],
) -> None:
    within, across = sizes
    nodes, each = math.prod(across.values()), math.prod(within.values())
    layout = factor_world(nodes * each, within=within, across=across)
    topology = Topology.even(nodes * each, nodes=nodes)
    for rank in range(nodes * each):
        node, slot = 0, 0
        for axis, index in layout.coordinate(rank).items():
            outer, inner = divmod(index, within.get(axis, 1))
            node = node * across.get(axis, 1) + outer
            slot = slot * within.get(axis, 1) + inner
        assert (node, slot) == (int(topology.node_of(rank)), rank % each)
    axis_crossings = crossings(layout, topology)
    assert {axis for axis in axis_crossings if axis_crossings[axis].crosses} == {
        a for a, n in across.items() if n > 1
    }
    assert all(crossing.most == across.get(axis, 1) for axis, crossing in axis_crossings.items())


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (factor_world(128, within={"tp": 8}, across={"dp": 16}), Layout(dp=16, tp=8)),
        (factor_world(128, within={"tp": 8}), Layout(dp=16, tp=8)),
        (factor_world(128, across={"dp": 16}, within={"tp": -1}), Layout(dp=16, tp=8)),
        (factor_world(12, within={"dp": 2, "tp": 2}, across={"dp": -1}), Layout(dp=6, tp=2)),
        (factor_world(12, within={"dp": -1}, across={"dp": 2}), Layout(dp=12)),
        (factor_world(8, within={}, across={}), Layout(dp=8)),
        (factor_world(8, across={"pp": 2}, within={"sp": 4}, order="pp sp"), Layout(pp=2, sp=4)),
        (factor_world(8, within={"tp": np.int64(8)}), Layout(dp=1, tp=8)),
        (
            factor_world(8, within={"tp": 2}, across={"tp": 2}, order="tp dp"),
            Layout(tp=4, dp=2, ranks=[0, 2, 1, 3, 4, 6, 5, 7]),
        ),
        (
            factor_world(8, within={"a": 2, "b": 2}, across={"a": 2}, order="b a"),
            Layout(b=2, a=4, ranks=[0, 1, 4, 5, 2, 3, 6, 7]),
        ),
    ],
)
def test_sizes_within_and_across(layout: Layout, expected: Layout) -> None:
    assert layout == expected


def test_parts_may_have_names_that_no_axis_can_have() -> None:
    assert split_world(data=2, axis=2) == {"data": range(2), "axis": range(2, 4)}
