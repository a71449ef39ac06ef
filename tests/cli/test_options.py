"""Numbers and files as typed."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from meshkit import SpecError
from meshkit.cli.options import (
    read_counts,
    read_gigabytes,
    read_integer,
    read_json_file,
    read_seconds,
)

DEEP = "[" * 10_000 + "]" * 10_000


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((read_seconds, text) for text in ("x", "", "0", "-1", "nan", "inf", "1e10", "0.0005")),
        *((read_gigabytes, text) for text in ("x", "", "0", "-1", "nan", "inf", "1e7")),
        *((read_integer, text) for text in ("x", "", "1.0", "1" * 19)),
        *((read_counts, text) for text in ("0", "2,", "-1")),
    ],
)
def test_an_invalid_number_is_quoted(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^'"):
        read(text)


def test_numbers_as_typed() -> None:
    assert read_counts("7,8") == (7, 8)
    assert [read_gigabytes(text) for text in ("80", "0.5")] == [80, 0.5]
    assert [read_seconds(text) for text in ("0.001", "60", "1e3")] == [0.001, 60, 1000]
    assert read_integer("-" + "9" * 18) == -(10**18) + 1


@pytest.mark.parametrize("text", [None, b"\xff\xfe", b"[1]", b"{", DEEP.encode()])
def test_a_file_without_a_json_object_is_refused(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "model.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(SpecError, match="the file of --model"):
        read_json_file("model", str(path), "a file.")
