"""What is asked of torch under no public name does nothing where torch has changed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from meshkit.launch.torch_internals import advance_group_counter


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_torch_goes_on_behind_the_groups_that_it_was_let_count() -> None:
    before = dist.get_pg_count()
    assert advance_group_counter(1000)
    assert dist.get_pg_count() == before + 1000
    assert dist.new_group([0]).group_name == str(before + 1000)


@pytest.mark.usefixtures("alone")
def test_nothing_is_counted_where_torch_would_do_more(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dist.get_pg_count()
    with monkeypatch.context() as patch:
        patch.setenv("TORCH_DIST_INIT_BARRIER", "1")  # all ranks meet behind every group
        assert not advance_group_counter(3)
    with monkeypatch.context() as patch:
        patch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(default_pg=None))
        patch.setattr(dist, "get_pg_count", lambda: before)
        assert not advance_group_counter(3)
    whole = SimpleNamespace(WORLD=SimpleNamespace(new_group=object()))
    with monkeypatch.context() as patch:
        patch.setattr(dist, "group", whole)  # a default group that makes groups itself
        assert not advance_group_counter(3)
    assert dist.get_pg_count() == before
