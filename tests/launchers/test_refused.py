"""A call that every rank of torchrun refuses, as the summary of torchrun shows it."""

from __future__ import annotations

from pathlib import Path

from tests.launchers.checks import clean_environ
from tests.preloaded_python import TORCHRUN, run_python

TEXT = "build_mesh(dp=4, sp=2) needs 8 ranks, the world has 2."


def run(ranks: int, script: Path, code: str) -> str:
    script.write_text(code)
    argv = ["--nproc-per-node", str(ranks), str(script)]
    done = run_python(TORCHRUN, *argv, environ=clean_environ())
    assert done.returncode != 0
    return done.stderr


def test_the_summary_shows_the_message(tmp_path: Path) -> None:
    output = run(2, tmp_path / "train.py", "import meshkit\nmeshkit.build_mesh(dp=4, sp=2)\n")
    by_ranks, _, summary = output.partition("\n====")
    assert f"SpecError: {TEXT}" in by_ranks
    assert "Fix: start 8 ranks" in summary
    assert 'train.py", line 2, in <module>' in summary


def test_an_error_that_was_caught_is_not_in_the_summary(tmp_path: Path) -> None:
    code = (
        "import meshkit\n"
        "try: meshkit.build_mesh(dp=4, sp=2)\n"
        "except meshkit.SpecError: pass\n"
        "raise ValueError('another')\n"
    )
    _, _, summary = run(1, tmp_path / "train.py", code).partition("\n====")
    assert summary
    assert TEXT not in summary
