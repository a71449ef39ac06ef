"""The registry of groups that views share: the users of a group, and when it ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.call import Call
from meshkit.groups import registry as group_registry
from meshkit.groups.registry import GroupEntry, GroupKey, GroupRegistry, Groups, GroupsReport
from meshkit.layout.layout import Layout


def group_key(number: int) -> GroupKey:
    return ((number, 1),), "gloo", timedelta(seconds=9)


CALL = Call("build_mesh", kwargs={"dp": 2})


def groups(used: set[int], made: set[int]) -> Groups:
    """Return groups, with strings as process groups; those of odd numbers are of other ranks."""
    new: dict[GroupKey, Any] = {group_key(n): None if n % 2 else f"group {n}" for n in sorted(made)}
    return Groups({}, {group_key(n): (("dp",),) for n in sorted(used)}, new)


@settings(deadline=None, database=None)
@given(st.lists(st.sets(st.integers(2, 9)), min_size=1, max_size=6), st.data())
def test_a_group_ends_with_its_last_user_and_only_once(
    views: list[set[int]], data: st.DataObject
) -> None:
    registry, there, view_ids = GroupRegistry(CALL), set[int](), []
    for used in views:
        view_ids.append(registry.register(Layout(dp=8), groups(used, used - there), round_id=7))
        there |= used
    ended: list[Any] = []
    open_ = dict(zip(view_ids, views, strict=True))
    for view_id in data.draw(st.permutations(view_ids)):
        del open_[view_id]
        ended += registry.release(view_id)
        alive = {n for used in open_.values() for n in used}
        assert set(registry.groups) == {group_key(n) for n in alive}
        assert not {f"group {n}" for n in alive} & set(ended)
        assert registry.release(view_id) == ()  # harmless
    assert sorted(ended) == sorted({f"group {n}" for n in there if n % 2 == 0})


def test_the_registry_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_registry, "knows_group", lambda group: True)
    registry = GroupRegistry(CALL, external_groups={((4, 1),): None})
    first = registry.register(Layout(dp=4, sp=2), groups({2, 3}, {2, 3}), round_id=5)
    second = registry.register(Layout(x=8), groups({2}, set()), round_id=6)
    assert (first, second) == (0, 1)
    assert registry.built_by is CALL
    assert registry.describe_views() == "views 0 (dp=4 sp=2), 1 (x=8) of mesh 5"
    assert registry.uses(group_key(2)) == ((0, "dp"), (1, "dp"))
    assert registry.uses(group_key(3)) == ((0, "dp"),)
    assert registry.find(group_key(2)) == ("created", "group 2")
    assert registry.find(group_key(3)) == ("created", None)
    assert registry.find(group_key(4)) == ("external", None)
    assert registry.find(group_key(8)) == ("default", None)
    registry.release(first)
    third = registry.register(Layout(y=8), groups(set(), set()), round_id=9)
    assert third == 2  # ids are never used twice
    assert registry.describe_views() == "views 1 (x=8), 2 (y=8) of mesh 5"


def test_a_report_is_a_table() -> None:
    report = GroupsReport(
        5,
        {0: "dp=8 sp=2", 2: "ep=8 tp=2"},
        (
            GroupEntry((*range(16),), "default", "gloo", 1800.0, ((0, "all"), (2, "all"))),
            GroupEntry((4, 5), "created", "gloo", 30.0, ((0, "sp"), (2, "tp"))),
            GroupEntry((5,), "external", "nccl", None, ()),
        ),
    )
    assert report.communicators == 3
    assert str(report).splitlines() == [
        "rank 5 holds 3 process groups, 1 created.",
        "  view 0: dp=8 sp=2",
        "  view 2: ep=8 tp=2",
        "  16 ranks [0, 1, ..., 15]  default   gloo 1800 s  0: all; 2: all",
        "  2 ranks [4, 5]            created   gloo 30 s    0: sp; 2: tp",
        "  1 rank [5]                external  nccl",
    ]
