"""Two hosts on one machine; a test that needs them is skipped if the machine forbids them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import hosts as namespaces
from benchmarks.hosts import Host, NoHostsError
from tests.launchers.checks import require_programs

__all__ = ["Host", "two_hosts"]


@contextmanager
def two_hosts(folder: Path, *names: str) -> Iterator[list[Host]]:
    """Yield two hosts that reach each other only; skip the test if the machine forbids them."""
    require_programs("iproute2", "ip")
    require_programs("util-linux", "unshare", "nsenter")
    try:
        hosts = namespaces.two_hosts(folder, *names)
        entered = hosts.__enter__()
    except NoHostsError as error:
        pytest.skip(str(error))
    try:
        yield entered
    finally:
        hosts.__exit__(None, None, None)
