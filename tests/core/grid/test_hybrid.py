"""Axes partly within nodes and partly across them, against the algorithm and results of JAX."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, Topology, factor_world
from meshkit.core.grid.axis_names import STANDARD
from meshkit.core.topology.crossing import crossings

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


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ({"dp": 2, "within": {"tp": 4}}, SpecError),
        ({"within": {"tp": -1}, "across": {"pp": 2}}, SpecError),
        ({"within": {"tp": -1}, "across": {"dp": -1}}, SpecError),
        ({"within": {"tp": 3}}, SpecError),
        ({"within": {"tp": 4}, "across": {"dp": 4}}, SpecError),
        ({"within": {"tp": 0}}, SpecError),
        ({"across": {"tp": -2}}, SpecError),
        ({"within": {"tp": "4"}}, SpecError),
        ({"within": {"tp": True}}, SpecError),
        ({"within": [4]}, SpecError),
        ({"across": "dp"}, SpecError),
        ({"within": {"x-y": 2}}, SpecError),
        ({"within": {"xy": 2}}, SpecError),
        ({"within": {"tp": 2}, "order": "tp sp"}, SpecError),
    ],
)
def test_invalid_sizes_raise_an_error(sizes: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match="factor_world"):
        factor_world(8, **sizes)  # type: ignore[arg-type]
