"""The host file: every level of it is read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshkit import Topology
from meshkit.layout.hostfile import LEVELS, parse_hostfile


@given(st.lists(st.integers(0, 7), min_size=1, max_size=20), st.integers(0, 3))
def test_every_level_is_read(nodes: list[int], levels: int) -> None:
    """Node n is in rack n // 2, row n // 4, hall n // 8."""
    outer = [[f"{'rwh'[i]}{n >> (i + 1)}" for i in range(levels)] for n in nodes]
    lines = [" ".join([f"n{n}", *names]) for n, names in zip(nodes, outer, strict=True)]
    found = parse_hostfile("# rank by rank\n\n" + " # a comment\n".join(lines))
    assert (
        found.node_of(range(len(nodes))).tolist()
        == Topology.of_hosts(nodes).node_of(range(len(nodes))).tolist()
    )
    assert found.levels == (*reversed(LEVELS[1:][:levels]), "node")
    for i in range(levels):
        domains = found.domain_of(LEVELS[1:][i], range(len(nodes)))
        names = [found.domain_names(LEVELS[1:][i])[d] for d in domains]
        assert names == [row[i] for row in outer]
    rows = parse_hostfile("a r1 x\nb r2 x\nc r1 y\n")  # racks of equal names in two rows
    assert rows.domain_names("rack") == ("x.r1", "r2", "y.r1")
