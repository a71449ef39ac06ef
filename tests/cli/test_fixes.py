"""A law: the fix of any refused command can be typed, and removes the fault."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshkit.cli.commands import bench, check
from meshkit.cli.main import main
from tests.bench.results.example_runs import CLEAN
from tests.core.report.example_reports import REPORT

law = settings(
    deadline=None,
    max_examples=200,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

AXES = st.sampled_from(["dp", "tp", "sp", "pp", "ep", "x", "seq", "shard"])
WORD = st.builds(lambda axis, size: f"{axis}={size}", AXES, st.sampled_from([1, 2, 3, 4, 7, -1]))
WORDS = st.lists(WORD, min_size=1, max_size=3).map(" ".join)
NUMBER = st.sampled_from([1, 2, 3, 5, 6, 8, 12])
ORDER = st.lists(AXES, max_size=3).map(lambda axes: shlex.quote(" ".join(axes)))


UNREADABLE = re.compile(r"no option|expected one argument|are required|is no option")
NODES = re.compile(r" divide over [0-9]+ nodes?\.| the nodes hold ")  # of a grid that is advised


def option(name: str, values: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
    return st.just("") | values.map(lambda value: f"{name} {value}")


def line(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda found: " ".join(part for part in found if part))


BATCH = (
    option("--global-batch", NUMBER),
    option("--micro-batch", NUMBER),
    option("--data", AXES),
)
NODES_TYPED = NUMBER | st.sampled_from(["3,5", "1,1", "2,2,4"])
GRID = (option("--world-size", NUMBER), option("--order", ORDER), option("--nodes", NODES_TYPED))
GROUPS = option("--groups", AXES)
PLAN = line(st.just("plan"), WORDS, *GRID, *BATCH, GROUPS, st.sampled_from(["", "--place"]))
EXPLAIN = line(
    st.just("explain"),
    st.sampled_from(["0", "5", "--all", ""]),
    WORDS,
    *GRID,
    *BATCH,
    option("--seq", NUMBER),
)
GRIDS = WORDS.map(lambda words: f'"{words}"')
DIFF = line(st.just("diff"), GRIDS, GRIDS, option("--world-size", NUMBER), *BATCH)
CHECK = line(st.just("check"), WORDS, option("--order", ORDER), GROUPS, option("-n", NUMBER))
BENCH = line(
    st.just("bench"),
    WORDS,
    option("--order", ORDER),
    option("--axes", AXES),
    option("-n", NUMBER),
)
COMMANDS = PLAN | EXPLAIN | DIFF | CHECK | BENCH


def fixes(said: str) -> list[str]:
    """Return the commands in a fix: each ends at a comma and a blank, or at the end."""
    fix = said.rpartition("Fix: ")[2].strip().removesuffix(".")
    return re.findall(r"meshkit (.+?)(?=, |; |$)", fix)


def refused(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of a command, or "" if it is accepted."""
    code = main(shlex.split(command))
    err = capsys.readouterr().err
    assert code == (2 if err else 0)
    return err


def fault(said: str) -> str:
    """Return the first line without the command."""
    first = said.partition("\n")[0]
    return re.sub(r"^meshkit .*?(?=: | needs | leaves | names )", "", first)


@law
@given(COMMANDS)
def test_a_fix_can_be_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("_check_locally", "_check_under_launcher"):
        monkeypatch.setattr(check, name, lambda *_: REPORT)
    for name in ("_measure_locally", "_measure_under_launcher"):
        monkeypatch.setattr(bench, name, lambda *_: (0, CLEAN))
    said = refused(command, capsys)
    grids = 2 if command.startswith("diff") else 1  # each of which may have the fault
    for fix in fixes(said):
        again = refused(fix, capsys)
        assert not UNREADABLE.search(again), (said, again)
        assert not NODES.search(again), (said, again)
        for more in fixes(again) if grids == 2 and fault(again) == fault(said) else []:
            again = refused(more, capsys)
        assert fault(again) != fault(said) or not again, (said, again)


def test_a_fix_is_found_and_a_fault_compared() -> None:
    said = "meshkit plan x=2: no.\n  Fix: start 8 ranks, or meshkit plan x=3 --order 'dp x', say."
    assert fixes(said) == ["plan x=3 --order 'dp x'"]
    assert fault(said) == ": no."
