"""How far groups reach: by following each message of each ring."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, factor_world
from meshkit.core.cost import AXES, Job, near
from meshkit.core.links import LINKS
from meshkit.core.memory import Choice
from meshkit.core.reach import ACROSS, INSIDE, Reach, reach

quick = settings(deadline=None, max_examples=60, database=None)


@pytest.mark.parametrize(
    ("axes", "level", "close"),
    [
        (("tp",), INSIDE, 2),
        (("sp",), INSIDE, 2),
        (("dp",), ACROSS, 1),
        (("dp", "tp"), ACROSS, 2),
        (("dp", "sp", "tp"), ACROSS, 4),
    ],
)
def test_eight_ranks_on_two_nodes(axes: tuple[str, ...], level: str, close: float) -> None:
    hosts = {rank: "ab"[rank // 4] for rank in range(8)}
    assert reach(Layout(dp=2, sp=2, tp=2), hosts, *axes) == Reach(level, close)


def test_the_group_that_leaves_its_nodes_most_often_counts() -> None:
    # ring 0-1-2-3 stays, ring 4-5-6-7 leaves its node at every message
    hosts = dict(enumerate("aaaaabab"))
    assert reach(Layout(dp=2, tp=4), hosts, "tp") == Reach(ACROSS, 1)


def test_hosts_are_told_by_rank_wherever_it_sits() -> None:
    hosts = {3: "a", 1: "b", 2: "a", 0: "b"}
    layout = Layout(dp=2, sp=2, ranks=[3, 1, 2, 0])  # dp: ranks 3 2, and 1 0
    assert (reach(layout, hosts, "dp").level, reach(layout, hosts, "sp").level) == (INSIDE, ACROSS)


@quick
@given(
    st.sampled_from([1, 2, 4, 8, 16]), st.lists(st.sampled_from([1, 2, 4]), min_size=6, max_size=6)
)
def test_on_equal_nodes_it_is_what_the_search_counts_with(node: int, sizes: list[int]) -> None:
    choice = Choice(*sizes)
    world = 1
    for size in sizes:
        world *= size
    if world % node or world > 512:
        return
    layout = factor_world(world, **dict(zip(AXES, sizes, strict=True)))
    hosts = {rank: f"n{rank // node}" for rank in range(world)}
    job = Job(world, world // node, 8, 8, LINKS["h100"])
    for axis, size in zip(AXES, sizes, strict=True):
        found, (ranks, close) = reach(layout, hosts, axis), near(job, choice, axis)
        assert size == ranks
        assert (found.level == INSIDE) == (close == ranks)
        assert found.close == close
