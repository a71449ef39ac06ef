"""``meshkit predict``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from meshkit.cli.main import main, parser
from meshkit.core.fit import Fit
from meshkit.core.measured_json import as_fields
from tests.core.reports import REPORT

HERE = replace(REPORT, hosts=dict.fromkeys(range(4), "a"))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "r.json"
    path.write_text(json.dumps(as_fields(HERE)))
    return path


def run(capsys: pytest.CaptureFixture[str], typed: str) -> tuple[int, str, str]:
    code = main(["predict", *shlex.split(typed)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("saved")
def test_a_row_for_each_line_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "r.json 100K 1K")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[:5] for row in rows] == [
        ["all_reduce", "dp", mode, "2", size]
        for mode in ("alone", "concurrent")
        for size in ("102400", "1024")
    ]
    alone = REPORT.fits[0]
    assert float(rows[0][5]) == pytest.approx(alone.seconds(102400) * 1e6, abs=0.05)


@pytest.mark.usefixtures("saved")
def test_json_and_what_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(run(capsys, "r.json 4K --json --ops all_reduce --axes dp")[1])
    assert said["ok"] is True
    assert [(one["mode"], one["size"]) for one in said["predictions"]] == [
        ("alone", 4096),
        ("concurrent", 4096),
    ]


REFUSED = [
    (
        "r.json 3M 1M",
        " r.json 3M 1M: all_reduce over dp was measured from 1024 to 1048576 bytes.\n"
        "  Algorithms and protocols change with the size: the line says nothing beyond.\n"
        "  Fix: meshkit predict r.json 1M; or first meshkit bench dp=2 sp=2 -n 4 --ops all_reduce "
        "--axes dp --sizes 1024:4194304:4 --json > wider.json.\n",
    ),
    (
        "r.json 0 --axes dp",
        " r.json 0 --axes dp: all_reduce over dp was measured from 1024 to 1048576 bytes.\n"
        "  Algorithms and protocols change with the size: the line says nothing beyond.\n"
        "  Fix: meshkit predict r.json 1K --axes dp.\n",
    ),
    (
        "r.json 2M 1K 3M 1",
        " r.json 2M 1K 3M 1: all_reduce over dp was measured from 1024 to 1048576 bytes.\n"
        "  Algorithms and protocols change with the size: the line says nothing beyond.\n"
        "  Fix: meshkit predict r.json 1M 1K.\n",
    ),
    (
        "r.json 1K --axes zz",
        " r.json 1K --axes zz: no line of 'zz' was measured.\n"
        "  There are all_reduce over dp.\n"
        "  Fix: meshkit predict r.json 1K.\n",
    ),
    (
        "r.json 1K --axes dp,zz,world",
        " r.json 1K --axes dp,zz,world: no line of 'zz' or 'world' was measured.\n"
        "  There are all_reduce over dp.\n"
        "  Fix: meshkit predict r.json 1K --axes dp.\n",
    ),
    (
        "r.json 1K --ops broadcast,all_reduce --axes dp",
        " r.json 1K --ops broadcast,all_reduce --axes dp: no line of 'broadcast' was measured.\n"
        "  There are all_reduce over dp.\n"
        "  Fix: meshkit predict r.json 1K --ops all_reduce --axes dp.\n",
    ),
    (
        "two.json 3M 1",
        " two.json 3M 1: all_reduce over dp sp was measured from 4096 to 1048576 bytes.\n"
        "  Algorithms and protocols change with the size: the line says nothing beyond.\n"
        "  Fix: meshkit predict two.json 64K 4K.\n",
    ),
    (
        "two.json 3M 2K",
        " two.json 3M 2K: all_reduce over dp sp was measured from 4096 to 1048576 bytes.\n"
        "  Algorithms and protocols change with the size: the line says nothing beyond.\n"
        "  Fix: meshkit predict two.json 64K 4K; or first meshkit bench dp=2 sp=2 --ops "
        "all_reduce,broadcast --axes 'dp sp,dp' --sizes 1024:4194304:4 --json > wider.json, "
        "without -n under the launcher of that run.\n",
    ),
    (
        "apart.json 3M",
        " apart.json 3M: all_reduce over dp sp was measured from 4096 to 8192 bytes.\n"
        "  Algorithms and protocols change with the size: the line says nothing beyond.\n"
        "  Fix: first meshkit bench dp=2 sp=2 -n 4 --ops all_reduce,broadcast --axes 'dp sp,dp' "
        "--sizes 4096:4194304:4 --json > wider.json.\n",
    ),
    (
        "apart.json 1",
        " apart.json 1: all_reduce over dp sp was measured from 4096 to 8192 bytes.\n"
        "  Algorithms and protocols change with the size: the line says nothing beyond.\n"
        "  Fix: sizes between those of each line.\n",
    ),
    (
        "'no such.json' 1K",
        " 'no such.json' 1K: the file cannot be read.\n"
        "  No such file or directory.\n"
        "  Fix: a file with what meshkit bench --json printed.\n",
    ),
    (
        "list.json 1K",
        " list.json 1K: the file cannot be read.\n"
        "  It holds no JSON object.\n"
        "  Fix: a file with what meshkit bench --json printed.\n",
    ),
    (
        "links.json 1K",
        " links.json 1K: the file holds no line through measured times.\n"
        "  Fix: meshkit bench dp=2 -n 2 --sizes 1K:1M --json, say, which measures two sizes or "
        "more.\n",
    ),
]


MESH = {"dp": 2, "sp": 2}


def lines(hosts: str, first: list[int], second: list[int]) -> str:
    """A file with two lines over sizes of their own."""
    zero = [0.0, 0.0]
    fits = [
        Fit("all_reduce", "dp sp", "alone", 4, 1e-4, 1e-9, tuple(first), tuple(zero), MESH),
        Fit("broadcast", "dp", "alone", 2, 1e-4, 1e-9, tuple(second), tuple(zero), MESH),
    ]
    return json.dumps({"hosts": [*hosts], "fits": [asdict(fit) for fit in fits]})


@pytest.mark.parametrize("name", ["dp sp", "sp dp", " sp  dp", "world", "'world'"])
def test_axes_in_any_order(name: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_text(lines("aabb", [4096, 2**20], [1024, 2**16]))
    code, out, err = run(capsys, f"r.json 4K --json --axes {shlex.quote(name.strip(chr(39)))}")
    assert (code, err) == (0, "")
    assert [one["axes"] for one in json.loads(out)["predictions"]] == ["dp sp"]


@pytest.mark.parametrize(("typed", "said"), REFUSED)
def test_refused(typed: str, said: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved.parent / "list.json").write_text("[1]")
    (saved.parent / "two.json").write_text(lines("aabb", [4096, 2**20], [1024, 2**16]))
    (saved.parent / "apart.json").write_text(lines("aaaa", [4096, 2**13], [2**14, 2**16]))
    (saved.parent / "links.json").write_text('{"inside": 3}')
    assert run(capsys, typed) == (2, "", f"meshkit predict{said}")


@pytest.mark.parametrize("start", ["[", '{"fits": ['])
def test_a_file_that_is_nested_too_deeply(
    start: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved.write_text(start + "[" * 200_000)
    assert run(capsys, "r.json 1K") == (
        2,
        "",
        "meshkit predict r.json 1K: the file cannot be read.\n"
        "  It is nested too deeply.\n"
        "  Fix: a file with what meshkit bench --json printed.\n",
    )


@pytest.mark.parametrize("typed", ["r.json 3M 2M 4K", "two.json 3M 2K", "two.json 9M"])
def test_the_fixes_can_be_typed(
    typed: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (saved.parent / "two.json").write_text(lines("aabb", [4096, 2**20], [1024, 2**16]))
    fix = run(capsys, typed)[2].rpartition("Fix: ")[2]
    nearest, wider = fix.split("; or first ")
    assert run(capsys, nearest.removeprefix("meshkit predict "))[0] == 0
    words = shlex.split(wider.partition(" > ")[0])[1:]
    asked = parser(["bench"]).parse_args(words)
    assert (asked.json, asked.n) == (True, 4 if typed.startswith("r") else None)
