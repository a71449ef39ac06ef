"""Commands that run in this process."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from meshkit.cli.main import main


@pytest.fixture
def answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[int, str, str]]:
    """Return a function: run a command line, and return its exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "80")

    def ask(command: str) -> tuple[int, str, str]:
        code = main(shlex.split(command))
        out, err = capsys.readouterr()
        return code, out, err

    return ask
