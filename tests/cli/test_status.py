"""``meshkit status``: its table and its JSON of a job that a client sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshkit.cli.main import main
from meshkit.launch import outside
from meshkit.launch.judges import Process
from meshkit.launch.outside import JobView, RankView

JOB = JobView(
    [
        RankView(0, Process("h1", 11), "runs", "dp=0", "in all_reduce over dp, a.py:3 (f)", 2.04),
        RankView(1, Process("h2", 12), "unknown", "dp=1"),
        RankView(2, None, "missing"),
    ],
    ["Rank 0 waits in build_mesh for rank 1."],
    True,
)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "look_at_job", lambda *_: JOB)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("job")
def test_the_table_has_a_line_for_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--store", "tcp://h1:29500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 ranks"
    assert lines[3].split(None, 6) == [
        *("0", "dp=0", "h1", "11", "runs", "2.0", "in all_reduce over dp, a.py:3 (f)")
    ]
    assert lines[4].split() == ["1", "dp=1", "h2", "12", "unknown"]
    assert lines[5].split() == ["2", "missing"]
    assert lines[6:] == [
        "Rank 0 waits in build_mesh for rank 1.",
        "A rank says where it is inside mesh.guard(timeout=...) alone.",
    ]


@pytest.mark.usefixtures("job")
def test_the_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--store", "tcp://h1:29500", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["waits"] == JOB.waits
    assert report["ranks"][0] == {
        **{"rank": 0, "host": "h1", "pid": 11, "state": "runs", "coordinate": "dp=0"},
        **{"where": "in all_reduce over dp, a.py:3 (f)", "seconds": 2.04},
    }
    assert report["ranks"][2]["host"] is None


def test_a_store_that_is_none_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for store in (f"file://{tmp_path}/missing", "node1:29500"):
        assert main(["status", "--store", store, "--timeout", "1"]) == 1
        assert capsys.readouterr().err.startswith(f"meshkit status --store {store} --timeout 1: ")
