"""Laws 7 and 8: views, groups that are equal across views, and plans equal on all ranks."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.layout.group_plan import GroupPlan
from meshkit.testing import axes_of, axis_names, layouts
from tests.laws.derivations import factorizations, groups_by_strides, law, members


@law
@given(layouts(with_ranks=True), st.lists(axis_names(), min_size=1, max_size=4, unique=True))
def test_law_7_view_there_and_back_is_the_identity(layout: Layout, names: list[str]) -> None:
    sizes = {name: math.gcd(layout.num_ranks, index + 2) for index, name in enumerate(names)}
    others = math.prod(list(sizes.values())[1:])
    assume(layout.num_ranks % others == 0)
    view = layout.view(**{**sizes, names[0]: -1})
    assert view.sizes == {**sizes, names[0]: layout.num_ranks // others}
    assert view.axes == tuple(names)
    np.testing.assert_array_equal(view.grid.ravel(), layout.grid.ravel())
    assert view.view(**layout.sizes) == layout
    assert hash(view.view(**layout.sizes)) == hash(layout)


@law
@given(layouts(with_ranks=True), st.data())
def test_law_7_equal_member_lists_are_one_group(layout: Layout, data: st.DataObject) -> None:
    plan = GroupPlan.of(layout, data.draw(st.lists(axes_of(layout, min_size=1), max_size=4)))
    groups = [frozenset(members(step.members)) for step in plan.steps]
    assert len(groups) == len(set(groups))
    by_key = {plan.group_key(step.axes): step for step in plan.steps}
    for axes in plan.axis_sets:
        np.testing.assert_array_equal(by_key[plan.group_key(axes)].members, layout.groups(axes))


@law
@given(layouts(with_ranks=True), st.data())
def test_law_7_keys_are_equal_exactly_if_groups_are(layout: Layout, data: st.DataObject) -> None:
    plan = GroupPlan.of(layout)
    a, b = data.draw(axes_of(layout)), data.draw(axes_of(layout))
    same_members = members(layout.groups(a)) == members(layout.groups(b))
    assert (plan.group_key(a) == plan.group_key(b)) == same_members


@law
@given(layouts(with_ranks=True), st.data())
def test_law_7_strides_are_equal_exactly_if_groups_are_across_views(
    layout: Layout, data: st.DataObject
) -> None:
    """Two axis sets of two views have all groups in common, or none."""
    view = layout.view(**data.draw(factorizations(layout.num_ranks)))
    axes_a = data.draw(axes_of(layout, min_size=1))
    axes_b = data.draw(axes_of(view, min_size=1))
    rows_a, rows_b = groups_by_strides(layout, axes_a), groups_by_strides(view, axes_b)
    assert (layout.strides(*axes_a) == view.strides(*axes_b)) == (rows_a == rows_b)
    if rows_a != rows_b:
        assert not {tuple(row) for row in rows_a} & {tuple(row) for row in rows_b}


@law
@given(layouts(with_ranks=True), st.data())
def test_law_8_every_rank_computes_the_same_plan(layout: Layout, data: st.DataObject) -> None:
    requested = data.draw(st.lists(axes_of(layout, min_size=1), max_size=3))
    ordered = layout.ranks if isinstance(layout.ranks, range) else layout.ranks.tolist()
    plan = GroupPlan.of(layout, requested)
    same = Layout(ranks=ordered, **layout.sizes)
    other = GroupPlan.of(same, [" ".join(axes) for axes in requested])
    assert plan == other
    assert plan.axis_sets == other.axis_sets
    for step, other_step in zip(plan.steps, other.steps, strict=True):
        assert step.axes == other_step.axes
        np.testing.assert_array_equal(step.members, other_step.members)


def test_law_8_requests_that_create_the_same_groups_still_differ() -> None:
    requests = [
        GroupPlan.of(Layout(dp=4)),
        GroupPlan.of(Layout(dp=4, tp=1)),
        GroupPlan.of(Layout(dp=4, sp=1)),
        GroupPlan.of(Layout(sp=1, dp=4)),
        GroupPlan.of(Layout(dp=4, sp=1), ["dp sp"]),
        GroupPlan.of(Layout(dp=4, sp=1), ["sp dp"]),
        GroupPlan.of(Layout(dp=4, sp=1), ["dp sp", "sp dp"]),
        GroupPlan.of(Layout(sp=4)),
    ]
    assert len(set(requests)) == len(requests)
