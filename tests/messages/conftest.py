"""The program that errors of a launcher propose to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshkit.launch import command as program


@pytest.fixture(scope="session", autouse=True)
def command_line() -> Iterator[None]:
    """Let errors propose the command line of a script instead of that of pytest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "program_arguments", lambda: "train.py")
        yield
