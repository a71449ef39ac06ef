"""Which groups a plan needs, and their timeouts by axis."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import meshkit
from meshkit.groups.requests import GroupOptions, GroupTimeouts, list_requests
from meshkit.layout.group_plan import GroupPlan

LAYOUT = meshkit.Layout(dp=2, sp=2, tp=2)
JOB = timedelta(seconds=900)


def limits(timeout: Any, layout: meshkit.Layout = LAYOUT) -> GroupTimeouts:
    return GroupTimeouts.of(GroupPlan.of(layout), timeout, JOB)


def seconds(found: GroupTimeouts, *axes: str) -> float:
    limit = found.by_key.get(axes, found.default)
    assert limit is not None
    return limit.total_seconds()


def test_one_timeout_for_all_groups() -> None:
    assert seconds(limits(30), "dp") == seconds(limits(30), "dp", "sp") == 30
    assert seconds(limits(None), "tp") == 900
    texts = [str(timeouts) for timeouts in (limits(30), limits(None), GroupTimeouts(None))]
    assert texts == ["30 s", "900 s", "default"]


def test_a_timeout_by_axis_leaves_the_others_at_that_of_the_job() -> None:
    found = limits({"tp": 30, "dp sp": timedelta(minutes=10), ("sp",): None})
    by_axes = [seconds(found, *axes) for axes in (("tp",), ("dp", "sp"), ("dp",), ("sp",))]
    assert by_axes == [30, 600, 900, 900]
    assert str(found) == "900 s, dp sp 600 s, tp 30 s"


def test_an_equal_group_takes_the_longest_timeout() -> None:
    flat = meshkit.Layout(dp=4, sp=1)
    for times in ({"dp": 30, "dp sp": 600}, {"dp sp": 600, "dp": 30}):
        assert seconds(limits(times, flat), "dp") == 600


def test_invalid_timeouts_raise() -> None:
    with pytest.raises(meshkit.UnknownAxisError):
        limits({"tq": 30})
    with pytest.raises(meshkit.UnknownAxisError):
        limits({3: 30})
    with pytest.raises(meshkit.SpecError, match="timeout is 0"):
        limits({"tp": 0})
    with pytest.raises(meshkit.SpecError) as caught:
        limits({"dp tp": 30})
    assert caught.value.fix == "build_mesh(..., groups=['dp tp'])."


@pytest.mark.parametrize(
    ("layout", "needed"),
    [
        (meshkit.Layout(dp=4, sp=2), True),
        (meshkit.Layout(dp=4, sp=2, tp=1), False),  # the group of tp is one rank
        (meshkit.Layout(dp=1), False),  # that of the whole mesh is
        (meshkit.Layout(pp=2, dp=2, ep=2, cp=2, sp=2, tp=2), False),  # no axis is absent
    ],
)
def test_absent_standard_axes_need_a_group_of_one_rank_unless_there_is_one(
    layout: meshkit.Layout, needed: bool
) -> None:
    options = GroupOptions(None, GroupTimeouts(None))
    requests = list_requests(GroupPlan.of(layout), options, "gloo")
    assert ("meshkit rank" in [request.description for request in requests]) == needed
