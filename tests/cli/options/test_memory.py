"""The memory of a machine or container, and ranks and arrays that do not fit into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshkit import SpecError
from meshkit.cli.options import memory as module
from meshkit.cli.options.memory import RANK_BYTES, check_memory, memory


def refusal(text: str, available: int, monkeypatch: pytest.MonkeyPatch) -> SpecError:
    """Return the error of two ranks on a machine with so many bytes."""
    monkeypatch.setattr("meshkit.cli.options.memory.memory", lambda: available)
    with pytest.raises(SpecError) as error:
        check_memory(text, 2, n=2, sizes={"dp": 2})
    return error.value


def test_arrays_that_fit_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshkit.cli.options.memory.memory", lambda: None)
    check_memory("1024G", 2, n=2, sizes={"dp": 2})
    monkeypatch.setattr("meshkit.cli.options.memory.memory", lambda: 2 * RANK_BYTES + 4 * 1024)
    check_memory("1K", 2, n=2, sizes={"dp": 2})


def test_arrays_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal("1K:2K:2", 2 * RANK_BYTES + 4 * 1024, monkeypatch).fix == "--sizes 256."


def test_ranks_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal("4", 2 * RANK_BYTES - 1, monkeypatch).summary.startswith("2 ranks do not fit")


def test_the_smallest_limit_counts(tmp_path: Path) -> None:
    few, none, odd = (tmp_path / name for name in ("few", "none", "odd"))
    few.write_text("4096\n")
    none.write_text("max\n")  # cgroup version 2 without a limit
    odd.write_text(f"{2**63 - 4096}\n")  # cgroup version 1 without a limit
    whole = memory([])
    assert whole is not None
    assert whole > 2**20
    assert memory([str(none), str(odd), str(tmp_path / "absent")]) == whole
    assert memory([str(none), str(few)]) == 4096


def test_an_unknown_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(module.os, "sysconf", unknown)
    assert memory([]) is None
