"""The memory of a machine, of its container, and of a system that reports none."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshkit.launch.doctor import memory as module
from meshkit.launch.doctor.memory import memory


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
