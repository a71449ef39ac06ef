"""Commands that run in this process, without a launcher."""

from __future__ import annotations

import shlex

import pytest

from meshkit.cli.main import main
from tests.cli.processes import MARKERS, Answers


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MARKERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answers:
    """Return a function: run a command line, and return its exit code, output and errors."""

    def ask(command: str) -> tuple[int, str, str]:
        code = main(shlex.split(command))
        out, err = capsys.readouterr()
        return code, out, err

    return ask
