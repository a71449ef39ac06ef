"""The option that writes the snapshot of error texts anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-messages``, which counts only if this folder is named on the command line."""
    parser.addoption("--update-messages", action="store_true", help="rewrite messages.txt")


@pytest.fixture(scope="session")
def updates_messages(pytestconfig: pytest.Config) -> bool:
    """Return whether the snapshot is to be written anew."""
    return bool(pytestconfig.getoption("--update-messages", default=False))
