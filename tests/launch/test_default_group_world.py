"""The world of a process in a default group that someone else created."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshkit.launch import default_group
from meshkit.launch.default_group import world_from_group


@pytest.mark.parametrize(
    ("rank", "local_world_size", "source"),
    [("1", 2, "LOCAL_RANK"), ("0", None, "rank, for lack of other facts")],
)
def test_facts_of_the_launcher_count_only_if_it_reports_the_rank_of_the_group(
    rank: str, local_world_size: int | None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of torchrun may join a group in an order of their own. Uses a fake of rank 1 of 2."""
    environ = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
    monkeypatch.delenv("MESHKIT_COMPLETED", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(default_group, "dist", SimpleNamespace(get_backend=lambda group: "gloo"))
    monkeypatch.setattr(default_group, "_device", lambda group, backend: torch.device("cpu"))
    group: Any = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    world = world_from_group(group)
    assert (world.rank, world.world_size, world.local_rank) == (1, 2, 1)
    assert (world.local_world_size, world.sources["local_rank"]) == (local_world_size, source)
