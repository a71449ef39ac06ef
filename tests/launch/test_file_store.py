"""The file of a store: a full disk, a deleted or truncated file, and other files.

A rank may also open the file while its last user removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.launch import file_store
from meshkit.launch.file_store import is_store, open_file
from meshkit.testing.faults import Strike, play

BUSY = 3.0
LIMIT = 4.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets no test mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def join_on_full_disk(strike: Strike, path: str) -> Any:
    strike.note()
    try:
        meshkit.init(init_method=f"file://{path}", arrival_timeout=LIMIT)
    finally:
        meshkit.shutdown()


def test_every_rank_names_the_device_of_a_full_disk(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 400_000)
    played = play(join_on_full_disk, 3, (str(small_disk / "store"),), timeout=60)
    assert played.fired is not None
    for rank in range(3):
        outcome = played.outcomes[rank]
        assert outcome.kind == "LaunchError", outcome
        assert f"no space left in {small_disk}" in outcome.text
        assert played.seconds(rank) < LIMIT + 5 + BUSY


def fill_up(strike: Strike, path: str) -> Any:
    """Fill the disk once the job has begun; then build, and leave."""
    meshkit.init(init_method=f"file://{path}", arrival_timeout=20)
    if meshkit.detect().rank == 0:
        strike.note()
        filler = Path(path).with_name("filler")
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
    with meshkit.build_mesh(dp=-1) as mesh:
        mesh.barrier()
    meshkit.shutdown()
    return "through"


def test_a_disk_that_fills_up_later_leaves_the_reserved_bytes(small_disk: Path) -> None:
    played = play(fill_up, 3, (str(small_disk / "store"),), timeout=60)
    assert played.fired == 0
    assert [played.outcomes[rank].text for rank in range(3)] == ["'through'"] * 3


def break_file(strike: Strike, path: str, how: str) -> Any:
    """Delete or truncate the file while rank 0 and 1 wait for rank 2."""
    meshkit.init(init_method=f"file://{path}", arrival_timeout=20)
    if meshkit.detect().rank == 2:
        time.sleep(1.5)
        strike.note()
        os.unlink(path) if how == "deleted" else os.truncate(path, 100)
        time.sleep(LIMIT)
        os._exit(0)
    meshkit.build_mesh(dp=-1, arrival_timeout=LIMIT)


@pytest.mark.parametrize("how", ["deleted", "truncated"])
def test_a_file_that_is_deleted_or_truncated_is_reported_as_that(how: str, tmp_path: Path) -> None:
    played = play(break_file, 3, (str(tmp_path / "store"), how), timeout=60)
    assert played.fired == 2
    for rank in (0, 1):
        outcome = played.outcomes[rank]
        assert outcome.kind == "RankTimeoutError", outcome
        assert f"the file of the job's store was {how}" in outcome.text
        assert played.seconds(rank) < LIMIT + 5 + BUSY


@pytest.mark.parametrize("lags", [True, False])
def test_a_size_that_lags_is_not_a_truncated_file(
    lags: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS shows a size of some seconds ago, until the file is opened again."""
    path = tmp_path / "store"
    path.write_bytes(b"x" * 1000)
    assert file_store.file_error(str(path)) is None
    before = os.stat(path)
    with monkeypatch.context() as patch:
        if lags:
            path.write_bytes(b"x" * 2000)
            assert file_store.file_error(str(path)) is None
            patch.setattr(file_store.os, "stat", lambda _: before)
        else:
            patch.setattr(file_store, "STILL", 0.2)
            os.truncate(path, 100)
        error = file_store.file_error(str(path))
    assert (error is None) == lags
    assert lags or "was truncated from 1000 to 100 bytes" in str(error)


# ---------------------------------------------------------------- its content

TEXTS = st.text(st.characters(codec="ascii"), max_size=20)


@given(st.dictionaries(TEXTS, TEXTS, max_size=4), st.integers(0, 30))
def test_a_file_is_a_store_unless_it_ends_inside_a_value(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str], cut: int
) -> None:
    path = tmp_path_factory.mktemp("store") / "store"
    store = dist.FileStore(str(path), 2)
    for key, value in values.items():
        store.set(key, value)
    data = path.read_bytes()
    ends, end = [], 0  # the ends of the values, by another derivation
    while end < len(data):
        for _ in range(2):
            end += 4 + int.from_bytes(data[end : end + 4], "little")
        ends.append(end)
    short = path.with_name("short")  # torch would read forever in the original
    size = max(0, len(data) - cut)
    short.write_bytes(data[:size])
    with mock.patch.object(file_store, "STILL", 0):
        assert is_store(short) == (size in (0, *ends))


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes((2**31).to_bytes(4, "little"))
    with path.open("r+b") as file:
        file.truncate(2**30)  # without blocks on disk
    tracemalloc.start()
    try:
        with mock.patch.object(file_store, "STILL", 0.1):
            assert not is_store(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_another_file_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("my precious notes")
    with pytest.raises(meshkit.LaunchError, match="is no store of torch"):
        meshkit.init(init_method=f"file://{path}", rank=0, world_size=2, arrival_timeout=2)
    assert path.read_text() == "my precious notes"


def test_a_file_that_still_grows_is_read_again_for_longer(tmp_path: Path) -> None:
    """Each look finds one more key, and the begin of another: a rank among many that write."""
    path, looks = tmp_path / "store", 40
    data = b"\x03\0\0\0key" + b"\x05\0\0\0value"
    begins: list[int] = []

    def skip(path: Path, begin: int) -> tuple[int, bool]:
        begins.append(begin)
        path.write_bytes(data * len(begins) + data[:-1] * (len(begins) < looks))
        return skip_records(path, begin)

    skip_records = file_store._skip_records
    with (
        mock.patch.object(file_store, "STILL", 0.2),
        mock.patch.object(file_store, "_skip_records", skip),
    ):
        assert is_store(path)
    assert begins == [number * len(data) for number in range(looks)]


def test_no_lock_is_taken(tmp_path: Path) -> None:
    """A store that the collector destroys meanwhile, in any thread, would wait for it."""
    path = tmp_path / "store"
    path.write_bytes(b"cut short")
    with path.open("rb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        assert not is_store(path)


def test_a_file_is_a_store_while_other_processes_write(tmp_path: Path) -> None:
    path, reads = tmp_path / "store", 0
    assert is_store(path)  # it is still missing
    store = dist.FileStore(str(path), 2)

    def write() -> None:
        for _ in range(3000):  # an endless writer would outrun the reader
            store.add("count", 1)

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        assert is_store(path)
        reads += 1
    assert reads > 1


# ---------------------------------------------------------------- its removal


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


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_that_is_lost_as_torch_opens_it_is_replaced(when: str, tmp_path: Path) -> None:
    path, opened, real = tmp_path / "store", list[dist.Store](), dist.FileStore
    leave(path, 2 if when == "before" else 0)

    def open_and_lose(*args: Any) -> dist.Store:
        if when == "before":
            path.unlink(missing_ok=True)
        opened.append(real(*args))
        if when == "after" and len(opened) == 1:
            path.unlink()
        return opened[-1]

    with mock.patch.object(dist, "FileStore", open_and_lose):
        store = open_file(str(path), 2, 2, 20)
    assert (len(opened), opened[-1]) == (1 if when == "before" else 2, store)
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
