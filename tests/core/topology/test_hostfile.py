"""Host files give the nodes of ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshkit import Topology
from meshkit.core.topology.hostfile import LEVELS, parse_hostfile

NAMES = st.text("abcxyz019-.", min_size=1, max_size=6)


@given(st.lists(NAMES, min_size=1, max_size=20))
def test_hosts_alone_are_those_of_the_list(hosts: list[str]) -> None:
    assert parse_hostfile("\n".join(hosts)) == Topology.of_hosts(hosts)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=20), st.integers(1, 3))
def test_every_level_is_read(nodes: list[int], levels: int) -> None:
    """Node n is in rack n // 2, row n // 4, hall n // 8."""
    text = "\n".join(
        " ".join([f"n{n}", *(f"{'rwh'[i]}{n >> (i + 1)}" for i in range(levels))]) for n in nodes
    )
    found = parse_hostfile(text)
    assert found.levels == (*reversed(LEVELS[1:][:levels]), "node")
    for i in range(levels):
        domains = found.domain_of(LEVELS[1:][i], range(len(nodes)))
        names = [found.domain_names(LEVELS[1:][i])[d] for d in domains]
        assert names == [f"{'rwh'[i]}{n >> (i + 1)}" for n in nodes]


def test_comments_and_empty_lines_are_passed_over() -> None:
    text = "# rank by rank\n\n a  r1 # the first\nb r1\n"
    assert parse_hostfile(text) == parse_hostfile("a r1\nb r1")


def test_racks_of_equal_names_in_two_rows_are_different_racks() -> None:
    topology = parse_hostfile("a r1 x\nb r2 x\nc r1 y\n")
    assert topology.domain_of("rack", [0, 1, 2]).tolist() == [0, 1, 2]
    assert topology.domain_names("rack") == ("x.r1", "r2", "y.r1")
    assert topology.domain_of("row", [0, 1, 2]).tolist() == [0, 0, 1]
