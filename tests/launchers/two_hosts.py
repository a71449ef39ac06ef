"""Two hosts on one machine; a test that wants them is skipped where there can be none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import placement as namespaces
from benchmarks.placement import Host, NoHostsError
from tests.launchers.checks import need

__all__ = ["Host", "two_hosts"]


@contextmanager
def two_hosts(folder: Path, *names: str) -> Iterator[list[Host]]:
    """Two hosts that reach each other and nothing else; skips where the machine forbids them."""
    need("iproute2", "ip")
    need("util-linux", "unshare", "nsenter")
    try:
        hosts = namespaces.two_hosts(folder, *names)
        found = hosts.__enter__()
    except NoHostsError as error:
        pytest.skip(str(error))
    try:
        yield found
    finally:
        hosts.__exit__(None, None, None)
