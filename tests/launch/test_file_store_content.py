"""Files that torch would read forever."""

from __future__ import annotations

import fcntl
import threading
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.launch import file_store
from meshkit.launch.file_store import is_store

TEXTS = st.text(st.characters(codec="ascii"), max_size=20)


def test_a_file_of_torch_is_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert is_store(path)
    path.touch()
    assert is_store(path)
    store = dist.FileStore(str(path), 2)
    for number in range(50):
        store.set(f"key/{number}", "x" * number)
        store.add("count", 1)
        assert is_store(path)


@given(st.dictionaries(TEXTS, TEXTS, max_size=4), st.integers(1, 30))
def test_a_truncated_file_is_no_store(
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
    short.write_bytes(data[:-cut])
    with mock.patch.object(file_store, "STILL", 0):
        assert is_store(short) == (max(0, len(data) - cut) in (0, *ends))


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
