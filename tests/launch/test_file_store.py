"""A file store whose disk is full, or whose file was deleted or truncated, while ranks wait."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meshkit
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
