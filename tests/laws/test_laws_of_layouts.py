"""Laws 1 to 6: coordinates, groups, neighbors and rings of a Layout.

Law 10 (equal to DeviceMesh) and law 11 (an all-reduce returns the group) need processes. They are
in tests/mesh/test_mesh.py.
"""

from __future__ import annotations

import itertools
import math

import einops
import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.testing import axes_of, axis_names, layouts
from tests.laws.derivations import groups_by_numpy, groups_by_strides, horner, index_tuples, law


@law
@given(layouts(with_ranks=True))
def test_law_1_rank_and_coordinate_are_inverse(layout: Layout) -> None:
    assert layout.grid.dtype == layout.coordinates(layout.grid).dtype == np.int64
    by_numpy = np.moveaxis(np.indices(layout.shape), 0, -1)
    np.testing.assert_array_equal(layout.coordinates(layout.grid), by_numpy)
    for indices in index_tuples(layout):
        rank = int(layout.ranks[horner(indices, layout.shape)])
        coordinate = dict(zip(layout.axes, indices, strict=True))
        assert [*layout.coordinate(rank).items()] == [*coordinate.items()]
        assert layout.rank(**coordinate) == layout.grid[indices] == rank


@law
@given(layouts(with_ranks=True), st.data())
def test_law_2_groups_partition_the_world_into_equal_parts(
    layout: Layout, data: st.DataObject
) -> None:
    axes = data.draw(axes_of(layout))
    groups = layout.groups(*axes)
    group_size = math.prod(layout.sizes[axis] for axis in axes or layout.axes)
    assert groups.shape == (layout.num_ranks // group_size, group_size)
    assert layout.size(*axes) == group_size
    assert sorted(groups.ravel().tolist()) == sorted(int(rank) for rank in layout.ranks)
    for row in groups.tolist():
        for rank in row:
            assert layout.peers(rank, *axes).tolist() == row


@law
@given(layouts(with_ranks=True).filter(lambda layout: len(layout.axes) > 1), st.data())
def test_law_3_groups_of_two_axes_share_at_most_one_rank(
    layout: Layout, data: st.DataObject
) -> None:
    a, b = data.draw(st.permutations(layout.axes))[:2]
    rows_a, rows_b = (layout.groups(axis).tolist() for axis in (a, b))
    assert all(len(set(x) & set(y)) <= 1 for x in rows_a for y in rows_b)
    for rank in layout.ranks:
        assert set(layout.peers(rank, a)) & set(layout.peers(rank, b)) == {rank}


@law
@given(layouts(with_ranks=True), st.data())
def test_law_4_ranks_of_one_group_differ_in_the_listed_axes_only(
    layout: Layout, data: st.DataObject
) -> None:
    axes = data.draw(axes_of(layout, min_size=1))
    for row in layout.groups(*axes).tolist():
        coordinates = [layout.coordinate(rank) for rank in row]
        fixed = {tuple(c[axis] for axis in layout.axes if axis not in axes) for c in coordinates}
        assert len(fixed) == 1
        # every combination of indices, in the order listed, the last axis fastest
        listed = [tuple(c[axis] for axis in axes) for c in coordinates]
        assert listed == list(itertools.product(*(range(layout.sizes[axis]) for axis in axes)))


@law
@given(layouts(with_ranks=True), st.data())
def test_law_5_strides_einops_and_numpy_agree_on_groups(
    layout: Layout, data: st.DataObject
) -> None:
    axes = data.draw(axes_of(layout, min_size=1))
    outer = [axis for axis in layout.axes if axis not in axes]
    grid = np.array(layout.ranks).reshape(layout.shape)
    pattern = f"{' '.join(layout.axes)} -> ({' '.join(outer)}) ({' '.join(axes)})"
    groups = layout.groups(*axes)
    assert groups.dtype == np.int64
    assert groups.tolist() == groups_by_strides(layout, axes)
    np.testing.assert_array_equal(groups, groups_by_numpy(layout, axes))
    np.testing.assert_array_equal(groups, einops.rearrange(grid, pattern))
    np.testing.assert_array_equal(groups, layout.rearrange(pattern))


@law
@given(layouts(with_ranks=True), st.data(), st.integers(-9, 9))
def test_law_5_strides_and_numpy_agree_on_neighbors(
    layout: Layout, data: st.DataObject, shift: int
) -> None:
    axis = data.draw(st.sampled_from(layout.axes))
    dim, size = layout.axes.index(axis), layout.sizes[axis]
    rolled = np.roll(layout.grid, -shift, axis=dim)
    for indices in index_tuples(layout):
        rank = int(layout.grid[indices])
        index = indices[dim] + shift
        assert layout.neighbor(rank, axis, shift) == rolled[indices]
        expected = rolled[indices] if 0 <= index < size else None
        assert layout.neighbor(rank, axis, shift, wrap=False) == expected


@law
@given(layouts(with_ranks=True), st.data())
def test_law_5_strides_and_a_product_agree_on_offsets(layout: Layout, data: st.DataObject) -> None:
    axes = data.draw(axes_of(layout, min_size=1))
    steps = layout.strides(*axes)
    assert all(size > 1 for size, _ in steps)
    assert all(
        a[1] != b[0] * b[1] for a, b in itertools.pairwise(steps)
    )  # no two steps can be merged
    sums = [sum(p) for p in itertools.product(*(range(0, n * s, s) for n, s in steps))]
    row = [layout.ranks[offset] for offset in sums]
    assert row == layout.groups(*axes)[0].tolist()


@law
@given(layouts(with_ranks=True, max_axes=3), axis_names(), st.data())
def test_law_6_an_axis_of_size_1_changes_no_other_group(
    layout: Layout, extra: str, data: st.DataObject
) -> None:
    assume(extra not in layout.axes)
    index = data.draw(st.integers(0, len(layout.axes)))
    items = list(layout.sizes.items())
    more = Layout(ranks=layout.ranks, **dict([*items[:index], (extra, 1), *items[index:]]))
    np.testing.assert_array_equal(more.groups(), layout.groups())
    for count in range(1, len(layout.axes) + 1):
        for axes in itertools.permutations(layout.axes, count):
            np.testing.assert_array_equal(more.groups(*axes), layout.groups(*axes))
            np.testing.assert_array_equal(more.groups(*axes, extra), layout.groups(*axes))
    for rank in layout.ranks:
        assert more.coordinate(rank) == {**layout.coordinate(rank), extra: 0}
        assert more.peers(rank, extra).tolist() == [rank]
        assert more.neighbor(rank, extra) == rank


@law
@given(layouts(with_ranks=True), st.data())
def test_a_ring_is_the_neighbors_in_order(layout: Layout, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from(layout.axes))
    rank = int(data.draw(st.sampled_from(list(layout.ranks))))
    neighbors = [layout.neighbor(rank, axis, shift) for shift in range(layout.sizes[axis])]
    assert layout.ring(rank, axis).tolist() == neighbors
