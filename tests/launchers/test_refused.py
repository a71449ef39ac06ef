"""A call that every rank of torchrun refuses: one message, one line per other rank, the summary."""

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


def test_one_rank_prints_the_message_and_the_summary_shows_it(tmp_path: Path) -> None:
    output = run(2, tmp_path / "train.py", "import meshkit\nmeshkit.build_mesh(dp=4, sp=2)\n")
    by_ranks, _, summary = output.partition("\n====")
    # torchrun may end the other ranks before they print
    assert by_ranks.count(f"SpecError: {TEXT}") == by_ranks.count(TEXT) >= 1
    assert by_ranks.count("  Fix: start 8 ranks") <= 1
    assert by_ranks.count('train.py", line 2, in <module>') <= 1  # one traceback
    assert by_ranks.count(f"{TEXT} Rank ") == by_ranks.count("prints the fix.") <= 1
    assert "sizes.py" not in output  # no frame of meshkit below the public function
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
