"""A command run in this process: what it answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from meshkit.cli.main import main


@pytest.fixture
def answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[int, str, str]]:
    """A command line to its exit code, its output and its errors, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def ask(command: str) -> tuple[int, str, str]:
        code = main(shlex.split(command))
        out, err = capsys.readouterr()
        return code, out, err

    return ask
