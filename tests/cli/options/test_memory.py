"""Ranks and arrays that do not fit into memory."""

from __future__ import annotations

import pytest

from meshkit import SpecError
from meshkit.cli.options.command_line import CommandLine
from meshkit.cli.options.memory import RANK_BYTES, check_memory

LINE = CommandLine("meshkit bench", ({"dp": 2},), {"n": 2})


def refusal(text: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of two ranks on a machine with so many bytes, as the command prints it."""
    monkeypatch.setattr("meshkit.cli.options.memory.memory", lambda: memory)
    with pytest.raises(SpecError) as error:
        check_memory(text, 2, n=2, sizes={"dp": 2})
    return str(error.value.quote(LINE))


def test_arrays_that_fit_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshkit.cli.options.memory.memory", lambda: None)
    check_memory("1024G", 2, n=2, sizes={"dp": 2})
    monkeypatch.setattr("meshkit.cli.options.memory.memory", lambda: 2 * RANK_BYTES + 4 * 1024)
    check_memory("1K", 2, n=2, sizes={"dp": 2})


def test_arrays_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal("1K:2K:2", 2 * RANK_BYTES + 4 * 1024, monkeypatch)
    assert text.endswith("Fix: meshkit bench dp=2 --sizes 256 -n 2.")


def test_ranks_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal("4", 2 * RANK_BYTES - 1, monkeypatch)
    assert text.startswith("meshkit bench dp=2 -n 2: 2 ranks do not fit into the memory")
