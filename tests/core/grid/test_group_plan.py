"""GroupPlan: the groups of a mesh, and the steps that create them."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from meshkit import Layout, SpecError, UnknownAxisError
from meshkit.core.grid.group_plan import GroupPlan

PLAN = GroupPlan.of(Layout(pp=2, dp=4, sp=2, tp=1))


def test_the_usual_groups() -> None:
    assert PLAN.axis_sets == ((), ("pp",), ("dp",), ("sp",), ("tp",), ("dp", "sp"))
    assert GroupPlan.of(Layout(dp=4)).axis_sets == ((),)
    assert GroupPlan.of(Layout(tp=4)).axis_sets == ((),)
    assert GroupPlan.of(Layout(dp=4, tp=2)).axis_sets == ((), ("dp",), ("tp",))
    assert GroupPlan.of(Layout(dp=4, sp=2)).axis_sets == ((), ("dp",), ("sp",))


def test_gradients_are_averaged_over_dp_ep_cp_sp_if_present() -> None:
    both = GroupPlan.of(Layout(dp=2, ep=2, cp=2, sp=2, tp=2)).axis_sets[-2:]
    assert both == (("dp", "ep", "cp", "sp"), ("dp", "cp", "sp"))
    # with one rank along ep, both names are one group
    alone = GroupPlan.of(Layout(dp=2, ep=1, sp=2, tp=2))
    assert alone.axis_sets[-2:] == (("dp", "ep", "sp"), ("dp", "sp"))
    assert len(alone.steps) == len(GroupPlan.of(Layout(dp=2, sp=2, tp=2)).steps) + 1  # one of one
    assert GroupPlan.of(Layout(data=2, seq=2, model=2)).axis_sets[-1] == ("data", "seq")
    # with an axis of unknown role, only the standard names have a group together
    assert GroupPlan.of(Layout(data=2, seq=2, x=2)).axis_sets[-1] == ("x",)
    assert GroupPlan.of(Layout(dp=2, x=2, sp=2)).axis_sets[-1] == ("dp", "sp")
    assert GroupPlan.of(Layout(dp=2, cp=2, tp=2)).axis_sets[-1] == ("dp", "cp")
    assert GroupPlan.of(Layout(cp=2, sp=2, tp=2)).axis_sets[-1] == ("cp", "sp")
    # in that order, for every order of the axes
    assert GroupPlan.of(Layout(sp=2, tp=2, dp=2)).axis_sets[-1] == ("dp", "sp")
    assert GroupPlan.of(Layout(sp=2, dp=2)).axis_sets == ((), ("sp",), ("dp",), ("dp", "sp"))


def test_requested_groups() -> None:
    layout = Layout(pp=2, dp=2, tp=2)
    plan = GroupPlan.of(layout, ["dp tp"])
    assert plan.axis_sets == ((), ("pp",), ("dp",), ("tp",), ("dp", "tp"))
    assert plan.requested == (("dp", "tp"),)
    assert GroupPlan.of(layout, [("dp", "tp")]) == plan
    assert GroupPlan.of(layout, ["dp tp", "tp dp"]).axis_sets[-2:] == (("dp", "tp"), ("tp", "dp"))
    assert GroupPlan.of(layout, ["dp", "pp dp tp"]).axis_sets == GroupPlan.of(layout).axis_sets


@pytest.mark.parametrize("groups", [["dp xp"], [("dp", "xp")], ["dp", "xp"]])
def test_an_unknown_axis_raises_an_error(groups: list[str]) -> None:
    with pytest.raises(UnknownAxisError) as caught:
        GroupPlan.of(Layout(dp=2, tp=2), groups)
    assert caught.value.axis == "xp"


def test_an_axis_twice_raises_an_error() -> None:
    with pytest.raises(SpecError, match="names the axis dp twice"):
        GroupPlan.of(Layout(dp=2, tp=2), ["dp dp"])


def test_one_str_is_one_group() -> None:
    """groups="dp tp" must not mean the axes d, p, t and p."""
    layout = Layout(pp=2, dp=2, tp=2)
    assert GroupPlan.of(layout, "dp tp") == GroupPlan.of(layout, ["dp tp"])


def test_the_group_key() -> None:
    assert PLAN.group_key(("dp",)) == ("dp",)
    assert PLAN.group_key(("tp",)) == ()
    assert PLAN.group_key(("dp", "tp", "sp")) == ("dp", "sp")
    assert PLAN.group_key(("sp", "dp")) == ("sp", "dp")
    assert PLAN.group_key(()) == PLAN.group_key(("pp", "dp", "sp", "tp")) == ("pp", "dp", "sp")
    assert GroupPlan.of(Layout(dp=1, tp=1)).group_key(()) == ()


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
    assert list(steps) == [(), ("pp",), ("dp",), ("sp",), ("tp",), ("dp", "sp")]
    assert steps[()] == [[*range(16)]]
    assert steps[("pp",)] == [[i, i + 8] for i in range(8)]
    assert steps[("dp",)] == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert steps[("sp",)] == [[i, i + 1] for i in range(0, 16, 2)]
    assert steps[("tp",)] == [[i] for i in range(16)]
    assert steps[("dp", "sp")] == [[*range(8)], [*range(8, 16)]]


def test_axes_of_size_1_share_one_step() -> None:
    plan = GroupPlan.of(Layout(pp=1, dp=4, sp=1, tp=1), ["dp tp", "sp tp"])
    assert [step.axes for step in plan.steps] == [(), ("pp",)]
    assert [step.members.shape for step in plan.steps] == [(1, 4), (4, 1)]
    alone = GroupPlan.of(Layout(dp=1, tp=1))
    assert [(step.axes, step.members.tolist()) for step in alone.steps] == [((), [[0]])]


def test_the_steps_of_a_sub_world_hold_its_ranks() -> None:
    plan = GroupPlan.of(Layout(dp=2, tp=2, ranks=[7, 0, 3, 5]))
    assert [step.members.tolist() for step in plan.steps] == [
        [[7, 0, 3, 5]],
        [[7, 3], [0, 5]],
        [[7, 0], [3, 5]],
    ]


REQUESTS = [
    GroupPlan.of(Layout(dp=4, sp=2)),
    GroupPlan.of(Layout(dp=2, sp=4)),
    GroupPlan.of(Layout(sp=2, dp=4)),
    GroupPlan.of(Layout(dp=4, tp=2)),
    GroupPlan.of(Layout(dp=4, sp=2, tp=1)),
    GroupPlan.of(Layout(dp=8)),
    GroupPlan.of(Layout(dp=4, sp=2), ["dp sp"]),
    GroupPlan.of(Layout(dp=4, sp=2), ["sp dp"]),
    GroupPlan.of(Layout(dp=4, sp=2), ["dp", "sp"]),
    GroupPlan.of(Layout(dp=4, sp=2), ["sp", "dp"]),
    GroupPlan.of(Layout(dp=4, sp=2), ["dp"]),
    GroupPlan.of(Layout(dp=4, sp=2, ranks=range(8, 16))),
    GroupPlan.of(Layout(dp=4, sp=2, ranks=range(0, 16, 2))),
    GroupPlan.of(Layout(dp=4, sp=2, ranks=range(7, -1, -1))),
    GroupPlan.of(Layout(dp=4, sp=2, ranks=[1, 0, *range(2, 8)])),
    GroupPlan.of(Layout(dp=4, sp=2, ranks=[0, 1, *range(2, 6), 7, 6])),
]


def test_different_requests_are_different_plans() -> None:
    assert all((a == b) == (a is b) for a in REQUESTS for b in REQUESTS)


@pytest.mark.parametrize("plan", REQUESTS, ids=range(len(REQUESTS)))
def test_a_plan_survives_pickle_and_copy(plan: GroupPlan) -> None:
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert copy.deepcopy(plan) == plan


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0, 2], range(0, 4, 2)),
        (range(0, 3, 2), range(0, 4, 2)),
        ([3, 1], range(3, -1, -2)),
        ([0, 1], None),
        (np.array([5, 0]), (5, 0)),
    ],
)
def test_equal_layouts_have_equal_plans(first: object, second: object) -> None:
    """Two ways to write the same ranks are the same request."""
    layouts = [Layout(dp=2, ranks=ranks) for ranks in (first, second)]  # type: ignore[arg-type]
    assert layouts[0] == layouts[1]
    assert GroupPlan.of(layouts[0]) == GroupPlan.of(layouts[1])


def test_the_plan_of_a_huge_layout_needs_no_array() -> None:
    plan = GroupPlan.of(Layout(pp=16, dp=2**21, tp=64))
    assert plan != GroupPlan.of(Layout(pp=16, dp=2**22, tp=32))
    assert plan.has(("dp",))
    assert plan.group_key(("pp", "tp")) == ("pp", "tp")


def test_a_plan_is_frozen_and_hashable() -> None:
    plan = GroupPlan.of(Layout(dp=4, sp=2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.layout = Layout(dp=8)  # type: ignore[misc]
    assert {plan: 1}[GroupPlan.of(Layout(dp=4, sp=2))] == 1
