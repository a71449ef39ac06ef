"""Check-ins of ranks at the store of a round."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from meshkit.launch.store.check_in import CheckIn, ProcessIdentity, read_check_ins, read_hosts


@given(st.sets(st.integers(0, 40)))
def test_exactly_the_ranks_that_checked_in_are_found(ranks: set[int]) -> None:
    store = dist.HashStore()
    for rank in ranks:
        CheckIn(ProcessIdentity("host", rank), {"sizes": str(rank)}).post(store, rank)
    check_ins = read_check_ins(store, range(41))
    assert sorted(check_ins) == sorted(ranks)
    for rank, check_in in check_ins.items():
        assert check_in == CheckIn(ProcessIdentity("host", rank), {"sizes": str(rank)})


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_hosts_are_read_only_if_ranks_are_on_several(kind: str, tmp_path: Path) -> None:
    store = dist.HashStore() if kind == "memory" else dist.FileStore(str(tmp_path / "store"), 1)
    assert read_hosts(store, range(3)) == [socket.gethostname()] * 3
    for rank, host in enumerate(["a", "b", "a"]):
        CheckIn(ProcessIdentity(host, 1)).post(store, rank)
    store.set("several_hosts", "")
    assert read_hosts(store, range(3)) == ["a", "b", "a"]
