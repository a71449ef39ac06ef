"""Slurm's topology.conf as levels: examples from its manual, errors, a law."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SpecError, Topology
from meshkit.launch.slurm import slurm_topology
from tests.launch.launchers.errors import text_of

TREE = """
# topology.conf: switches
SwitchName=s0 Nodes=n[0-3]
switchname=s1 nodes=n[4-7] LinkSpeed=100   # a comment
SwitchName=s2 Switches=s[0-1]
"""
HOSTS = [f"n{node}" for node in range(8) for _ in range(2)]


def test_a_tree_of_switches() -> None:
    topology = slurm_topology(TREE, HOSTS)
    assert topology.levels == ("spine", "switch", "node")
    assert topology.domain_names("switch") == ("s0", "s1")
    assert topology.domain_names("spine") == ("s2",)
    assert topology.domain_of("switch", range(16)).tolist() == [0] * 8 + [1] * 8
    assert topology.names == tuple(f"n{node}" for node in range(8))
    assert topology == Topology.of_hosts(HOSTS).with_level(
        "switch", ["s0"] * 4 + ["s1"] * 4
    ).with_level("spine", ["s2"] * 8)


def test_blocks() -> None:
    text = "BlockName=b1 Nodes=n[0-3]\nBlockName=b2 Nodes=n[4-7]\nBlockSizes=4,8\n"
    topology = slurm_topology(text, HOSTS)
    assert topology.levels == ("block", "node")
    assert topology.domain_names("block") == ("b1", "b2")


def test_only_switches_of_the_job_are_levels_and_hosts_come_in_any_order() -> None:
    topology = slurm_topology(TREE, ["n5", "n0", "n5", "n0"])
    assert topology.domain_names("switch") == ("s1", "s0")
    assert topology.domain_of("switch", range(4)).tolist() == [0, 1, 0, 1]
    assert slurm_topology("SwitchName=s0 Nodes=a,b", ["a"]).levels == ("switch", "node")


def test_hosts_with_their_domain() -> None:
    assert slurm_topology(TREE, ["n5.cluster.org"]).domain_names("switch") == ("s1",)
    text = "SwitchName=s0 Nodes=n5.cluster.org\nSwitchName=s1 Nodes=n5"
    assert slurm_topology(text, ["n5.cluster.org"]).domain_names("switch") == ("s0",)


def test_a_switch_without_a_parent_is_its_own_domain_above() -> None:
    text = "SwitchName=a Nodes=n0\nSwitchName=b Nodes=n1\nSwitchName=top Switches=b"
    topology = slurm_topology(text, ["n0", "n1"])
    assert topology.domain_names("spine") == ("a", "top")


def test_a_backslash_continues_a_line() -> None:
    text = "SwitchName=s0 \\\n  Nodes=n0,\\\nn1\nSwitchName=s1 Nodes=n2\\"
    topology = slurm_topology(text, ["n0", "n1", "n2"])
    assert topology.domain_of("switch", range(3)).tolist() == [0, 0, 1]
    with pytest.raises(SpecError, match="Line 3 is 'oops='"):
        slurm_topology("SwitchName=s0 \\\nNodes=n0\noops=", ["n0"])


def test_a_tree_of_many_tiers() -> None:
    lines = ["SwitchName=s0 Nodes=n0", *(f"SwitchName=s{i + 1} Switches=s{i}" for i in range(4))]
    topology = slurm_topology("\n".join(lines), ["n0"])
    assert topology.levels == ("tier 5", "tier 4", "superspine", "spine", "switch", "node")


@settings(deadline=None, max_examples=40, database=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_ranks_are_in_the_domains_that_were_written(switches: int, nodes: int, ranks: int) -> None:
    lines = [f"SwitchName=s{s} Nodes=n{s}x[1-{nodes}]" for s in range(switches)]
    hosts = [f"n{s}x{n + 1}" for s in range(switches) for n in range(nodes) for _ in range(ranks)]
    topology = slurm_topology("\n".join(lines), hosts)
    each = nodes * ranks
    assert topology.domain_of("switch", range(len(hosts))).tolist() == [
        rank // each for rank in range(len(hosts))
    ]


@pytest.mark.parametrize(
    ("text", "hosts", "expected"),
    [
        (
            "SwitchName=s0 Nodes=n1\nNodes=n2",
            ["n1"],
            """\
the text is not a valid topology.conf.
  Line 2 is 'Nodes=n2': it has no SwitchName and no BlockName.
  Fix: lines such as SwitchName=s0 Nodes=n[1-4], or SwitchName=top Switches=s[0-1].""",
        ),
        (
            "SwitchName=s0 Nodes=n[1-",
            ["n1"],
            """\
the text is not a valid topology.conf.
  Line 1 is 'SwitchName=s0 Nodes=n[1-': not a node list: 'n[1-'.
  Fix: lines such as SwitchName=s0 Nodes=n[1-4], or SwitchName=top Switches=s[0-1].""",
        ),
        (
            "SwitchName=s0 Nodes=n1\nSwitchName=s1 Nodes=n1",
            ["n1"],
            """\
the text is not a valid topology.conf.
  Line 2 is 'SwitchName=s1 Nodes=n1': n1 is already below s0.
  Fix: lines such as SwitchName=s0 Nodes=n[1-4], or SwitchName=top Switches=s[0-1].""",
        ),
        (
            "SwitchName=s0 Nodes=n1",
            ["n1", "n2"],
            """\
n2 is below no switch.
  Fix: a line such as SwitchName=s0 Nodes=n2, or hosts spelled as in Slurm.""",
        ),
        (
            "SwitchName=s0 Nodes=n1\nSwitchName=s0 Switches=s1\nSwitchName=s1 Switches=s0",
            ["n1"],
            """\
the switch s0 is above itself.
  Fix: Switches= lines that form a tree.""",
        ),
        (
            "SwitchName=s0 Nodes=n1",
            [],
            """\
there are no hosts.
  Fix: for example Topology.of_hosts(['a', 'a', 'b', 'b']), the host of each rank.""",
        ),
    ],
)
def test_the_exact_text_of_errors(text: str, hosts: list[str], expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        slurm_topology(text, hosts)
    assert text_of(caught.value).removeprefix("Topology.of_hosts([]): ") == expected
    quoted = "text" if "\n" in text else repr(text)
    assert str(caught.value).startswith(f"slurm_topology({quoted}, {hosts}): ")
