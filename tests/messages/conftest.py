"""The option that writes the snapshot of error texts anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshkit.launch.launchers import program


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-messages``, which counts only if this folder is named on the command line."""
    parser.addoption("--update-messages", action="store_true", help="rewrite messages.txt")


@pytest.fixture(scope="session", autouse=True)
def command_line() -> Iterator[None]:
    """Let errors propose the command line of a script instead of that of pytest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "program_arguments", lambda: "train.py")
        yield


@pytest.fixture(scope="session")
def updates_messages(pytestconfig: pytest.Config) -> bool:
    """Return whether the snapshot is to be written anew."""
    return bool(pytestconfig.getoption("--update-messages", default=False))
