"""The registry of groups that views share: the users of a group, and when it ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.call import Call
from meshkit.live.groups.registry import GroupKey, GroupRegistry, Groups


def alike(number: int) -> GroupKey:
    return ((number, 1),), "gloo", timedelta(seconds=9)


CALL = Call("build_mesh", kwargs={"dp": 2})


def groups(used: set[int], made: set[int]) -> Groups:
    """Return groups, with strings as process groups; those of odd numbers are of other ranks."""
    new: dict[GroupKey, Any] = {alike(n): None if n % 2 else f"group {n}" for n in sorted(made)}
    return Groups({}, {alike(n): (("dp",),) for n in sorted(used)}, new)


@settings(deadline=None, database=None)
@given(st.lists(st.sets(st.integers(2, 9)), min_size=1, max_size=6), st.data())
def test_a_group_ends_with_its_last_user_and_only_once(
    views: list[set[int]], data: st.DataObject
) -> None:
    book, there, births = GroupRegistry(), set[int](), []
    for used in views:
        births.append(book.register("view", groups(used, used - there), number=7))
        there |= used
    ended: list[Any] = []
    open_ = dict(zip(births, views, strict=True))
    for birth in data.draw(st.permutations(births)):
        del open_[birth]
        ended += book.release(birth)
        alive = {n for used in open_.values() for n in used}
        assert set(book.groups) == {alike(n) for n in alive}
        assert not {f"group {n}" for n in alive} & set(ended)
        assert book.release(birth) == ()  # harmless
    assert sorted(ended) == sorted({f"group {n}" for n in there if n % 2 == 0})


def test_the_registry_as_text() -> None:
    book = GroupRegistry(lent={((4, 1),): None})
    first = book.register("dp=4 sp=2", groups({2, 3}, {2, 3}), number=5)
    second = book.register("x=8", groups({2}, set()), number=6)
    assert (first, second) == (0, 1)
    assert book.call is CALL
    assert book.in_words() == "views 0 (dp=4 sp=2), 1 (x=8) of mesh 5"
    assert book.uses(alike(2)) == ((0, "dp"), (1, "dp"))
    assert book.uses(alike(3)) == ((0, "dp"),)
    assert book.find(alike(2)) == ("made", "group 2")
    assert book.find(alike(3)) == ("made", None)
    assert book.find(alike(4)) == ("lent", None)
    assert book.find(alike(8)) == ("default", None)
    book.release(first)
    assert book.register("y=8", groups(set(), set()), number=9) == 2  # births are never used twice
    assert book.in_words() == "views 1 (x=8), 2 (y=8) of mesh 5"
