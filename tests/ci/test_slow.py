"""The run of the slow tests in ``.ci/run`` reads only the files that write their mark."""

from __future__ import annotations

from pathlib import Path

RUN = Path(__file__).parents[2] / ".ci" / "run"
MARK = "pytest.mark.slow"


def test_every_slow_test_stands_in_a_file_that_the_gate_gives_to_pytest(
    slow_files: set[Path],
) -> None:
    """In the default run these are the files of all slow tests."""
    assert r"grep -rl --include='test_*.py' 'pytest\.mark\.slow' tests" in RUN.read_text()
    without = [str(path) for path in slow_files if MARK not in path.read_text()]
    assert without == []
    assert all(path.name.startswith("test_") for path in slow_files)
