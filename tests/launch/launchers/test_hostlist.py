"""Node lists and task lists: examples, errors, and laws, also against scontrol."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.launch.slurm import first_host, host_names, task_counts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        # the output of scontrol show hostnames, Slurm 22.05
        ("rack[1-2]node[3-4],login1", "rack1node3 rack1node4 rack2node3 rack2node4 login1"),
        ("n[01-03]", "n01 n02 n03"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[09-11]", "n09 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[1-02]", "n1 n2"),
        ("n[3,1]", "n3 n1"),
        ("n[1,5-6,09]", "n1 n5 n6 n09"),
        ("n[1-2],n[2-3]", "n1 n2 n2 n3"),
        ("n[1-2][3-4]", "n13 n14 n23 n24"),
        ("0[1-2]", "01 02"),
        ("n[0-0]", "n0"),
        ("login", "login"),
        ("login-1.cluster,a_b", "login-1.cluster a_b"),
        ("n1,", "n1"),
        ("c[3005,3011,3019,3105]", "c3005 c3011 c3019 c3105"),
        # that version rejects these, and others write them
        ("n[0-6:2]", "n0 n2 n4 n6"),
        ("n[0-5:2]", "n0 n2 n4"),
        ("n[01-09:4]", "n01 n05 n09"),
        ("n[1-2]-ib", "n1-ib n2-ib"),
        (",n1,, n2 ,", "n1 n2"),  # scontrol skips empty names
        ("n[1-2]b[3-4]c,d", "n1b3c n1b4c n2b3c n2b4c d"),
    ],
)
def test_a_node_list(text: str, hosts: str) -> None:
    assert list(host_names(text)) == hosts.split()
    assert first_host(text) == hosts.split()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[2-1]", "not a range: '2-1'"),
        ("n[10-09]", "not a range: '10-09'"),
        ("n[]", "not a range: ''"),
        ("n[a-b]", "not a range: 'a-b'"),
        ("n[-1]", "not a range: '-1'"),
        ("n[1-2-3]", "not a range: '1-2-3'"),
        ("n[1-3:0]", "not a range: '1-3:0'"),
        ("n[1:2]", "not a range: '1:2'"),
        ("n[1-2", "not a node list: 'n[1-2'"),
        ("n1-2]", "not a node list: 'n1-2]'"),
        ("n[[1]]", "not a node list: 'n[[1]]'"),
        ("n[1]]", "not a node list: 'n[1]]'"),
    ],
)
def test_a_malformed_node_list(text: str, message: str) -> None:
    for read in (first_host, lambda text: list(host_names(text))):
        with pytest.raises(ValueError) as caught:  # noqa: PT011, the message is asserted whole
            read(text)
        assert str(caught.value) == message


def test_the_first_host_of_a_very_long_list() -> None:
    assert first_host("n[0007-999999999]m[1-999999999]") == "n0007m1"


def test_an_empty_list_has_no_first_host() -> None:
    assert list(host_names("")) == list(host_names(",")) == []
    with pytest.raises(ValueError, match=r"^no hosts$"):
        first_host("")


def test_an_error_is_raised_when_iteration_reaches_the_fault() -> None:
    """The first host is enough for a rendezvous; later parts may need a newer Slurm."""
    hosts = host_names("n[1-2],n[2-1]")
    assert [next(hosts), next(hosts)] == ["n1", "n2"]
    with pytest.raises(ValueError, match=r"^not a range: '2-1'$"):
        next(hosts)
    assert first_host("n[1-2],,n4") == "n1"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("2(x3),1", [2, 2, 2, 1]),
        ("34,26,2(x2)", [34, 26, 2, 2]),
        ("2,1", [2, 1]),
        ("8", [8]),
        ("0(x2)", [0, 0]),
        (" 2 , 1 ", [2, 1]),
    ],
)
def test_a_task_list(text: str, counts: list[int]) -> None:
    assert task_counts(text) == counts


@pytest.mark.parametrize("text", ["", ",", "2,", "2(x)", "(x2)", "2x3", "-1", "2(x2", "1.0", "two"])
def test_a_malformed_task_list(text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the message is asserted whole
        task_counts(text)
    assert str(caught.value) == f"not a list of tasks: {text!r}"


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
        lambda parts: (
            ",".join(text for text, _ in parts),
            [one for _, all_ in parts for one in all_],
        )
    )


@given(lists(brackets=3))
def test_a_list_expands_to_the_parts_that_it_was_built_from(parts: Parts) -> None:
    text, hosts = parts
    assert list(host_names(text)) == hosts
    assert first_host(text) == hosts[0]


@given(lists(brackets=2), lists(brackets=2))
def test_lists_joined_by_a_comma_follow_each_other(one: Parts, two: Parts) -> None:
    joined = [*host_names(f"{one[0]},{two[0]}")]
    assert joined == [*host_names(one[0]), *host_names(two[0])]


@given(lists(brackets=2), st.sampled_from("[]"))
def test_an_extra_bracket_raises(parts: Parts, bracket: str) -> None:
    with pytest.raises(ValueError, match=r"^not a node list: "):
        list(host_names(parts[0] + bracket))


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 9)), min_size=1), st.booleans())
def test_task_counts_are_the_numbers_that_the_list_was_written_from(
    runs: list[tuple[int, int]], ones: bool
) -> None:
    written = [f"{n}(x{times})" if ones or times > 1 else str(n) for n, times in runs]
    expected: list[int] = []
    for number, times in runs:
        for _ in range(times):
            expected.append(number)
    assert task_counts(",".join(written)) == expected


# ---------------------------------------------------------------- and the answers of Slurm itself


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which scontrol reads only this configuration."""
    if shutil.which("scontrol") is None:
        pytest.skip("not on this machine: scontrol (Debian's package slurm-client)")
    config: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    config.write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    return {**os.environ, "SLURM_CONF": str(config)}


def shown(text: str, environ: dict[str, str]) -> list[str]:
    command = ["scontrol", "show", "hostnames", text]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (text, done.stderr)
    return done.stdout.split()


@settings(max_examples=60, deadline=None)
@given(parts=lists(brackets=2, by_scontrol=True))
def test_hosts_are_those_of_scontrol(scontrol: dict[str, str], parts: Parts) -> None:
    assert shown(parts[0], scontrol) == list(host_names(parts[0])) == parts[1]


@settings(max_examples=30, deadline=None)
@given(parts=lists(brackets=3, by_scontrol=True))
def test_scontrol_varies_three_brackets_in_another_order(
    scontrol: dict[str, str], parts: Parts
) -> None:
    """The second of three varies slowest; the set and the first host are the same."""
    there = shown(parts[0], scontrol)
    assert sorted(there) == sorted(host_names(parts[0]))
    assert there[0] == first_host(parts[0])


@pytest.mark.parametrize("text", ["2(x0)", "\u0663", "2(x\u0663)"])
def test_task_counts_that_are_not_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="not a list of tasks"):
        task_counts(text)
