"""Slurm's formats: node lists, task lists and topology.conf, by laws and against scontrol."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SpecError, Topology
from meshkit.launch.slurm import first_host, host_names, slurm_topology, task_counts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        # the output of scontrol show hostnames, Slurm 22.05
        ("rack[1-2]node[3-4],login1", "rack1node3 rack1node4 rack2node3 rack2node4 login1"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[1-02]", "n1 n2"),
        ("n[1,5-6,09]", "n1 n5 n6 n09"),
        ("n[1-2],n[2-3]", "n1 n2 n2 n3"),
        ("n[1-2][3-4]", "n13 n14 n23 n24"),
        ("0[1-2]", "01 02"),
        ("login-1.cluster,a_b", "login-1.cluster a_b"),
        (",n1,, n2 ,", "n1 n2"),  # scontrol skips empty names
        # that version rejects these, and others write them
        ("n[01-09:4]", "n01 n05 n09"),
        ("n[1-2]b[3-4]c,d", "n1b3c n1b4c n2b3c n2b4c d"),
    ],
)
def test_a_node_list(text: str, hosts: str) -> None:
    assert list(host_names(text)) == hosts.split()
    assert first_host(text) == hosts.split()[0]


@pytest.mark.parametrize("inside", ["2-1", "10-09", "", "a-b", "-1", "1-2-3", "1-3:0", "1:2"])
def test_a_malformed_range(inside: str) -> None:
    for read in (first_host, lambda text: list(host_names(text))):
        with pytest.raises(ValueError, match=f"^not a range: '{inside}'$"):
            read(f"n[{inside}]")


@pytest.mark.parametrize("text", ["n[1-2", "n1-2]", "n[[1]]", "n[1]]"])
def test_a_malformed_node_list(text: str) -> None:
    for read in (first_host, lambda text: list(host_names(text))):
        with pytest.raises(ValueError, match=r"^not a node list: "):
            read(text)


def test_the_first_host_needs_no_other_host() -> None:
    """The first host is enough for a rendezvous; later parts may need a newer Slurm."""
    assert first_host("n[0007-999999999]m[1-999999999]") == "n0007m1"
    assert first_host("n[1-2],n[2-1]") == next(host_names("n[1-2],n[2-1]")) == "n1"
    assert list(host_names(",")) == []
    with pytest.raises(ValueError, match=r"^no hosts$"):
        first_host("")


@pytest.mark.parametrize(
    "text",
    ["", "2,", "2(x)", "(x2)", "2x3", "-1", "2(x2", "1.0", "2(x0)", "\u0663", "2(x\u0663)"],
)
def test_a_malformed_task_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"^not a list of tasks: "):
        task_counts(text)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 9)), min_size=1), st.booleans())
def test_task_counts_are_the_numbers_that_the_list_was_written_from(
    runs: list[tuple[int, int]], ones: bool
) -> None:
    written = [f"{n}(x{times})" if ones or times > 1 else f" {n}" for n, times in runs]
    assert task_counts(",".join(written)) == [n for n, times in runs for _ in range(times)]


# ---------------------------------------------------------------- laws: built from known parts

Parts = tuple[str, list[str]]  # as it is written, and what it stands for
LETTERS = st.text("abcxyz-", min_size=1, max_size=4).filter(lambda text: text[0] != "-")


@st.composite
def ranges(draw: st.DrawFn, *, stepped: bool) -> Parts:
    """Return ``"07-11"``, ``"3"`` or ``"0-6:2"`` and its numbers, which are counted."""
    first, width = draw(st.integers(0, 120)), draw(st.integers(1, 4))
    step = draw(st.integers(1, 3)) if stepped else 1
    count = draw(st.integers(1, 4))
    width = max(width, len(str(first)))  # the digits that are written set the width
    numbers = [first + step * place for place in range(count)]
    text = f"{first:0{width}d}"
    if count > 1 or draw(st.booleans()):
        text += f"-{numbers[-1] + (draw(st.integers(0, step - 1)))}"
        text += f":{step}" * (step > 1 or (stepped and draw(st.booleans())))
    return text, [f"{number:0{width}d}" for number in numbers]


@st.composite
def names(draw: st.DrawFn, *, brackets: int, by_scontrol: bool) -> Parts:
    """Return one name with its brackets."""
    text = draw(LETTERS)
    columns = [[text]]
    for _ in range(draw(st.integers(0, brackets))):
        inside = draw(st.lists(ranges(stepped=not by_scontrol), min_size=1, max_size=3))
        columns.append([number for _, numbers in inside for number in numbers])
        text += f"[{','.join(written for written, _ in inside)}]"
        between = draw(LETTERS)
        columns.append([between])
        text += between
    if by_scontrol and len(columns) > 1:  # it refuses text after the last bracket
        text = text.removesuffix(columns.pop()[0])
    return text, ["".join(parts) for parts in product(*columns)]


def lists(*, brackets: int, by_scontrol: bool = False) -> st.SearchStrategy[Parts]:
    several = st.lists(names(brackets=brackets, by_scontrol=by_scontrol), min_size=1, max_size=3)
    return several.map(
        lambda parts: (",".join(text for text, _ in parts), [h for _, all_ in parts for h in all_])
    )


@given(lists(brackets=3), st.sampled_from("[]"))
def test_a_list_expands_to_the_parts_that_it_was_built_from(parts: Parts, bracket: str) -> None:
    text, hosts = parts
    assert list(host_names(text)) == hosts
    assert first_host(text) == hosts[0]
    with pytest.raises(ValueError, match=r"^not a node list: "):
        list(host_names(text + bracket))


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which scontrol reads only this configuration."""
    if shutil.which("scontrol") is None:
        pytest.skip("not on this machine: scontrol (Debian's package slurm-client)")
    config: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    config.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    return {**os.environ, "SLURM_CONF": str(config)}


@settings(max_examples=60, deadline=None)
@given(parts=lists(brackets=3, by_scontrol=True))
def test_hosts_are_those_of_scontrol(scontrol: dict[str, str], parts: Parts) -> None:
    """With three brackets, its second varies slowest; the set and the first host are the same."""
    command = ["scontrol", "show", "hostnames", parts[0]]
    done = subprocess.run(command, env=scontrol, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (parts, done.stderr)
    shown, hosts = done.stdout.split(), list(host_names(parts[0]))
    few = all(name.count("[") < 3 for name in parts[0].split("],"))
    assert (shown if few else sorted(shown)) == (hosts if few else sorted(hosts))
    assert shown[0] == first_host(parts[0])


# ---------------------------------------------------------------- topology.conf

TREE = """
# topology.conf: switches
SwitchName=s0 Nodes=n[0-3]
switchname=s1 \\
  nodes=n[4-7] LinkSpeed=100   # a comment
SwitchName=s2 Switches=s[0-1]\\"""
HOSTS = [f"n{node}" for node in range(8) for _ in range(2)]


def test_a_tree_of_switches() -> None:
    switches = Topology.of_hosts(HOSTS).with_level("switch", ["s0"] * 4 + ["s1"] * 4)
    assert slurm_topology(TREE, HOSTS) == switches.with_level("spine", ["s2"] * 8)
    topology = slurm_topology(TREE, ["n5.cluster.org", "n0", "n5.cluster.org"])  # in any order
    assert topology.domain_names("switch") == ("s1", "s0")
    assert topology.domain_of("switch", range(3)).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "hosts", "levels", "domains"),
    [
        (
            "BlockName=b1 Nodes=n[0-3]\nBlockName=b2 Nodes=n[4-7]\nBlockSizes=4,8\n",
            HOSTS,
            ("block", "node"),
            ("b1", "b2"),
        ),
        ("SwitchName=s0 Nodes=a,b", ["a"], ("switch", "node"), ("s0",)),
        (
            "SwitchName=s0 Nodes=n5.cluster.org\nSwitchName=s1 Nodes=n5",
            ["n5.cluster.org"],
            ("switch", "node"),
            ("s0",),
        ),
        (  # a switch without a parent is its own domain above
            "SwitchName=a Nodes=n0\nSwitchName=b Nodes=n1\nSwitchName=top Switches=b",
            ["n0", "n1"],
            ("spine", "switch", "node"),
            ("a", "top"),
        ),
        (
            "\n".join(
                ["SwitchName=s0 Nodes=n0"]
                + [f"SwitchName=s{i + 1} Switches=s{i}" for i in range(4)]
            ),
            ["n0"],
            ("tier 5", "tier 4", "superspine", "spine", "switch", "node"),
            ("s4",),
        ),
    ],
)
def test_levels(
    text: str, hosts: list[str], levels: tuple[str, ...], domains: tuple[str, ...]
) -> None:
    topology = slurm_topology(text, hosts)
    assert topology.levels == levels
    assert topology.domain_names(levels[0]) == domains


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_ranks_are_in_the_domains_that_were_written(switches: int, nodes: int, ranks: int) -> None:
    lines = [f"SwitchName=s{s} Nodes=n{s}x[1-{nodes}]" for s in range(switches)]
    hosts = [f"n{s}x{n + 1}" for s in range(switches) for n in range(nodes) for _ in range(ranks)]
    domains = slurm_topology("\n".join(lines), hosts).domain_of("switch", range(len(hosts)))
    assert domains.tolist() == [rank // (nodes * ranks) for rank in range(len(hosts))]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("SwitchName=s0 Nodes=n1\nNodes=n2", "Line 2 "),
        ("SwitchName=s0 \\\nNodes=n1\noops=", "Line 3 "),
        ("SwitchName=s0 Nodes=n[1-", "Line 1 "),
        ("SwitchName=s0 Nodes=n1\nSwitchName=s1 Nodes=n1", "n1 is already below s0"),
        ("SwitchName=s0 Nodes=n2", "n1 is below no switch"),
        (
            "SwitchName=s0 Nodes=n1\nSwitchName=s0 Switches=s1\nSwitchName=s1 Switches=s0",
            "s0 is above itself",
        ),
    ],
)
def test_invalid_lines_and_hosts(text: str, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        slurm_topology(text, ["n1"])
