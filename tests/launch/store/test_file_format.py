"""Files that torch would read without end."""

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
from meshkit.launch.store import file_format
from meshkit.launch.store.file_format import is_store

WORDS = st.text(st.characters(codec="ascii"), max_size=20)


def test_what_torch_itself_writes_is_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert is_store(path)
    path.touch()
    assert is_store(path)
    store = dist.FileStore(str(path), 2)
    for number in range(50):
        store.set(f"key/{number}", "x" * number)
        store.add("count", 1)
        assert is_store(path)


@given(st.dictionaries(WORDS, WORDS, max_size=4), st.integers(1, 30))
def test_what_is_cut_short_is_none(
    tmp_path_factory: pytest.TempPathFactory, words: dict[str, str], cut: int
) -> None:
    path = tmp_path_factory.mktemp("store") / "store"
    store = dist.FileStore(str(path), 2)
    for key, value in words.items():
        store.set(key, value)
    data = path.read_bytes()
    ends, place = [], 0  # where a value ends, by a reading of its own
    while place < len(data):
        for _ in range(2):
            place += 4 + int.from_bytes(data[place : place + 4], "little")
        ends.append(place)
    short = path.with_name("short")  # torch itself would read on and on in the other one
    short.write_bytes(data[:-cut])
    with mock.patch.object(file_format, "PAUSES", (0.0,) * 3):
        assert is_store(short) == (max(0, len(data) - cut) in (0, *ends))


def test_a_large_file_that_is_none_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes((2**31).to_bytes(4, "little"))
    with path.open("r+b") as file:
        file.truncate(2**30)  # without blocks on the disk
    tracemalloc.start()
    try:
        assert not is_store(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_other_files_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("my precious notes")
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.init(init_method=f"file://{path}", rank=0, world_size=2, arrival_timeout=2)
    assert "  There is a file that is no store of torch's, or one that was cut short.\n" in str(
        caught.value
    )
    assert path.read_text() == "my precious notes"


def test_a_write_that_is_under_way_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "store"
    dist.FileStore(str(path), 2).set("key", "value")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    end = threading.Timer(0.03, lambda: path.write_bytes(whole))
    end.start()
    assert is_store(path)
    end.join()


def test_a_look_goes_on_where_the_one_before_it_was_cut_short(tmp_path: Path) -> None:
    begins: list[int] = []
    path = tmp_path / "store"
    data = b"\x03\0\0\0key" + b"\x05\0\0\0value"

    def look(path: Path, begin: int) -> tuple[int, bool]:
        begins.append(begin)
        path.write_bytes(data * len(begins) + data[:-1] * (len(begins) < 3))
        return walked(path, begin)

    walked = file_format._whole
    with mock.patch.object(file_format, "_whole", look):
        assert is_store(path)
    assert begins == [0, len(data), 2 * len(data)]


def test_a_file_that_stays_cut_short_is_waited_for_a_tenth_of_a_second() -> None:
    assert 0.1 < sum(file_format.PAUSES) < 0.2


def test_no_lock_is_taken(tmp_path: Path) -> None:
    """A store that is destroyed meanwhile, by the collector in any thread, would wait for it."""
    path = tmp_path / "store"
    path.write_bytes(b"cut short")
    with path.open("rb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        assert not is_store(path)


def test_while_others_write(tmp_path: Path) -> None:
    path, looks = tmp_path / "store", 0
    store = dist.FileStore(str(path), 2)

    def write() -> None:
        for _ in range(3000):  # without an end the file would outgrow whoever reads it
            store.add("count", 1)

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        assert is_store(path)
        looks += 1
    assert looks > 1
