"""A rank that opens the file of a store while its last user removes it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist

from meshkit.launch import file_store
from meshkit.launch.file_store import open_file


def leave(path: Path, users: int) -> None:
    """Let users come and go, of whom none removes the file."""
    for _ in range(users):
        dist.FileStore(str(path), -1)


def is_in(path: Path, store: dist.Store) -> bool:
    """Return whether others find at the path what this store writes."""
    store.set("own", "here")
    return path.exists() and b"own" in path.read_bytes()


def test_a_rank_waits_until_the_last_user_has_removed_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    leave(path, 2)
    old = path.open("rb")
    remover = threading.Timer(0.1, path.unlink)
    remover.start()
    store = open_file(str(path), 2, 2, 20)
    remover.join()
    assert is_in(path, store)
    assert not os.path.samestat(os.fstat(old.fileno()), path.stat())
    assert b"cleanup/" not in path.read_bytes()
    old.close()


def test_a_rank_whose_file_is_removed_while_torch_opens_it_opens_the_next_one(
    tmp_path: Path,
) -> None:
    path, opened = tmp_path / "store", []
    real = dist.FileStore

    def open_and_lose(*args: object) -> dist.Store:
        opened.append(real(*args))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    with mock.patch.object(dist, "FileStore", open_and_lose):
        store = open_file(str(path), 2, 2, 20)
    assert len(opened) == 2
    assert is_in(path, store)


@pytest.mark.parametrize(("users", "waits"), [(1, False), (2, True)])
def test_a_file_that_nobody_removes_is_opened(users: int, waits: bool, tmp_path: Path) -> None:
    path = tmp_path / "store"
    leave(path, users)
    began = time.monotonic()
    with mock.patch.object(file_store, "REMOVAL_TIME", 0.2):
        store = open_file(str(path), 2, 2, 20)
    assert (time.monotonic() - began >= 0.2) is waits
    assert is_in(path, store)
    assert b"cleanup/" in path.read_bytes()


def test_a_file_in_use_is_opened_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    first = dist.FileStore(str(path), 3)
    leave(path, 3)
    with mock.patch.object(time, "sleep", side_effect=AssertionError):
        assert is_in(path, open_file(str(path), 3, 3, 20))
    first.set("still", "used")


def test_a_file_that_is_gone_before_torch_opens_it_is_replaced(tmp_path: Path) -> None:
    path, opened, real = tmp_path / "store", [], dist.FileStore
    leave(path, 2)

    def lose_and_open(*args: object) -> dist.Store:
        path.unlink(missing_ok=True)
        opened.append(real(*args))
        return opened[-1]

    with mock.patch.object(dist, "FileStore", lose_and_open):
        store = open_file(str(path), 2, 2, 20)
    assert opened == [store]
    assert is_in(path, store)
