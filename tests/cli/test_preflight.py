"""``meshkit preflight``: its parts together, each left out, each failing; torchrun; misuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshkit
from meshkit import LaunchError
from meshkit.cli import bench, doctor, preflight
from meshkit.cli.doctor import Finding
from meshkit.cli.main import CommandParser
from tests.cli.processes import Answers, begun, ended

QUICK = "-n 2 --device cpu --axes dp --sizes 64 --iters 2 --warm-up 0"
GOOD = "import meshkit\nmeshkit.init()\nmeshkit.build_mesh(dp=2).barrier()\n"


@pytest.fixture(autouse=True)
def _good_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "checkup", lambda _: [Finding("torch", True, "2.13")])


def script(folder: Path, text: str = GOOD) -> str:
    """Return the path of a new script."""
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def test_three_parts_are_one_page(answer: Answers, tmp_path: Path) -> None:
    line = f"preflight dp=2 {QUICK} --max-latency dp=1e9 --rehearse {script(tmp_path)}"
    code, out, error = answer(line)
    assert code == 0, error
    first, *_, last = out.splitlines()
    assert first == "doctor: All 1 check OK."
    assert "\nOK: 1 row in " in out
    assert "\n2 ranks, dp=2. Played: 2, in " in out
    assert last == "OK: doctor, bench, rehearse."


def test_the_json_has_each_part_that_was_run(answer: Answers, tmp_path: Path) -> None:
    code, out, _ = answer(f"preflight dp=2 {QUICK} --min-busbw dp=999 --json --skip doctor")
    report = json.loads(out)
    assert code == 1
    assert [*report] == ["ok", "bench"]
    assert report["ok"] is report["bench"]["ok"] is False
    assert [row["option"] for row in report["bench"]["missed"]] == ["min-busbw"]
    rest = f"--json --skip doctor,bench --rehearse --ranks 0 {script(tmp_path)}"
    code, out, _ = answer(f"preflight dp=2 {rest}")
    report = json.loads(out)
    assert [*report] == ["ok", "rehearse"]
    assert (code, report["rehearse"]["world_size"], report["rehearse"]["ranks"]) == (0, 2, [0])


def test_sizes_and_options_are_in_any_order(answer: Answers, tmp_path: Path) -> None:
    path = script(tmp_path, GOOD.replace("dp=2", "dp=2, tp=2"))
    code, out, error = answer(f"preflight dp=2 --skip doctor,bench tp=2 --rehearse {path}")
    assert (code, error) == (0, "")
    assert out.startswith("4 ranks, dp=2 tp=2. Played: 4, in ")


def cannot_join(*_: object) -> None:
    """Fail as ranks that cannot join a job."""
    raise LaunchError("joining the job failed.", fix="x.")


def test_each_part_runs_whatever_the_others_found(
    answer: Answers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = Finding("shared memory", False, "0.1 GiB", "mount it")
    monkeypatch.setattr(doctor, "checkup", lambda _: [wrong])
    monkeypatch.setattr(bench, "measure", cannot_join)
    one_rank_only = "import meshkit\nif meshkit.init().rank:\n    raise ValueError('mine')\n"
    line = f"preflight dp=2 {QUICK} --rehearse {script(tmp_path, one_rank_only)}"
    code, out, _ = answer(line)
    assert code == 1
    assert "\n1 of 1 check failed: shared memory.\n" in out
    assert "failed first" in out
    assert "joining the job failed." in out
    assert "ValueError: mine" in out
    assert out.endswith("\nFAILED: doctor, bench, rehearse.\n")
    code, out, _ = answer(line.replace("--rehearse", "--json --rehearse"))
    report = json.loads(out)
    assert report["bench"]["error"]["type"] == "SpawnError"
    assert not any(report[part]["ok"] for part in ("doctor", "bench", "rehearse"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--rehearse nowhere.py", "there is no script 'nowhere.py'."),
        ("--rehearse", "no script is given."),
        ("--rehearse --nodess 2 x.py", "there is no option --nodess."),
        ("--skip rehearse", "--skip: 'rehearse' is neither doctor nor bench."),
        ("--skip doctor,bench", "no part is left to run."),
        ("--skip doctor train.py", "'train.py' is not the size of an axis."),
        ("--device gpu", "torch does not know the device 'gpu'."),
        ("--min-busbw dp=1,dp=2", "--min-busbw has dp twice."),
        ("--against /nonexistent/file", "the file of --against cannot be read."),
    ],
)
def test_misuse_is_refused_before_anything_runs(
    words: str, line: str, answer: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "spawn_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    monkeypatch.setattr(doctor, "checkup", lambda _: pytest.fail("the host was checked"))
    code, out, error = answer(f"preflight dp=2 -n 2 {words}")
    assert (code, out) == (2, "")
    assert f": {line}" in error


# ---------------------------------------------------------------- under a launcher


def run_on_a_host(words: list[str]) -> tuple[bool, str]:
    """Run preflight on a rank; the host of rank 1 fails its checks. Return the outcome and page."""
    rank = meshkit.detect().rank
    found = Finding("shared memory", rank == 0, "", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_RANK", "0")
        patch.setattr(doctor, "checkup", lambda _: [found])
        result = preflight.run_preflight(CommandParser(preflight.PREFLIGHT).parse(words))
    page = "" if result.draw is None else result.draw(width=100, ascii=True)
    return result.ok, page


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_cannot_join_leave_the_checks_of_the_host_on_the_page(
    rank: int, answer: Answers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(preflight, "run_under_launcher", cannot_join)
    code, out, error = answer(f"preflight dp=2 --rehearse {script(tmp_path)}")
    assert code == 1
    if rank:
        assert out == ""
        assert "joining the job failed." in error
    else:
        assert out.startswith("doctor: All 1 check OK.\n\n")
        assert "joining the job failed." in out
        assert out.endswith("\nFAILED: bench; not run: rehearse.\n")


def test_only_rank_0_needs_the_script(answer: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(preflight, "run_under_launcher", lambda *_: (1, [], None))
    assert answer("preflight dp=2 --rehearse nowhere.py") == (0, "", "")


@pytest.mark.parametrize("parts", ["", "--skip bench"])
def test_the_page_has_the_failures_of_other_hosts(parts: str) -> None:
    words = f"dp=2 --device cpu --axes dp --sizes 64 --iters 2 --warm-up 0 {parts}".split()
    (ok, page), (other_ok, other_page) = meshkit.spawn(run_on_a_host, 2, (words,), timeout=90)
    assert (other_ok, other_page) == (True, "")  # rank 0 has the page and the exit status
    assert not ok
    failed = ": 1 of 1 check failed: shared memory. Run meshkit doctor there.\n"
    assert failed in page.replace("\n  ", " ")
    assert ("\nOK: 1 row in " in page) is (parts == "")
    assert "\nFAILED: doctor" in page


@pytest.mark.slow
def test_under_torchrun_rank_0_prints_the_page(tmp_path: Path) -> None:
    start = "-m torch.distributed.run --nproc-per-node 2"
    torchrun = [*start.split(), "-m", "meshkit", "preflight", "dp=2"]
    words = f"--device cpu --axes dp --sizes 64 --iters 2 --rehearse {script(tmp_path)}".split()
    code, out, error = ended(begun(*torchrun, *words))
    assert code in (0, 1), error  # doctor may find something here
    assert out.count("\nOK: 1 row in ") == 1
    assert out.count("2 ranks, dp=2. Played: 2") == 1
    assert out.splitlines()[-1] in ("OK: doctor, bench, rehearse.", "FAILED: doctor.")
