"""Process groups in torch's private API, and the result if torch has changed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor

import meshkit
from meshkit.launch import torch_groups
from meshkit.launch.job import leave_default_group
from meshkit.launch.torch_aborts import LoweredTimeouts, timeout_of
from meshkit.launch.torch_groups import (
    advance_group_counter,
    bound_device,
    can_split,
    hidden_device,
    is_fake_store,
    is_nccl,
    store_of,
    takes_part_in_split,
)


@pytest.fixture
def default_group() -> Iterator[None]:
    """Create a default group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("default_group")
def test_torch_names_the_next_group_after_the_counted_ones() -> None:
    before = dist.get_pg_count()
    assert advance_group_counter(1000)
    assert dist.get_pg_count() == before + 1000
    assert dist.new_group([0]).group_name == str(before + 1000)


@pytest.mark.usefixtures("default_group")
def test_nothing_is_counted_if_torch_does_more_than_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dist.get_pg_count()
    with monkeypatch.context() as patch:
        patch.setenv("TORCH_DIST_INIT_BARRIER", "1")  # all ranks wait after every group
        assert not advance_group_counter(3)
    with monkeypatch.context() as patch:
        patch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(default_pg=None))
        patch.setattr(dist, "get_pg_count", lambda: before)
        assert not advance_group_counter(3)
    other = SimpleNamespace(WORLD=SimpleNamespace(new_group=object()))
    with monkeypatch.context() as patch:
        patch.setattr(dist, "group", other)  # a default group that creates groups itself
        assert not advance_group_counter(3)
    assert dist.get_pg_count() == before


@pytest.mark.usefixtures("default_group")
def test_a_group_exposes_its_store() -> None:
    group = dist.group.WORLD
    assert group is not None
    store = store_of(group)
    assert store is not None
    store.set("a", "b")
    assert store.get("a") == b"b"


@pytest.mark.parametrize(
    ("device", "backend", "new", "takes_part", "splits"),
    [
        (None, "nccl", None, False, False),
        ("cuda:1", "nccl", None, True, True),
        ("cuda:1", "nccl", "nccl", True, True),
        ("cuda:1", "nccl", "gloo", False, False),
        ("cuda:1", "gloo", None, True, False),
        ("cuda:1", "nccl2", None, True, True),
        ("cuda:1", "nccl-legacy", None, True, True),
        ("cuda:1", "nccl", "nccl-lazy", False, False),
        ("cuda:1", "nccl-lazy", "nccl-lazy", True, True),
        ("xpu:1", "xccl", None, True, True),
        # torch splits the part of the device, one group a call
        ("cuda:1", "cpu:gloo,cuda:nccl", None, True, False),
        ("cuda:1", "cpu:gloo,cuda:nccl", "nccl", True, False),
        ("cuda:1", "cpu:gloo,cuda:nccl", "gloo", False, False),
        ("cuda:1", "nccl", "cpu:gloo,cuda:nccl", True, False),
    ],
)
def test_a_bound_default_group_is_split(
    device: str | None,
    backend: str,
    new: str | None,
    takes_part: bool,
    splits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = None if device is None else torch.device(device)
    options = SimpleNamespace(global_ranks_in_group=[])
    world = SimpleNamespace(
        bound_device_id=bound,
        name=lambda: backend,
        size=lambda: 2,
        _get_backend=lambda device: SimpleNamespace(options=options, supports_splitting=True),
    )
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=world))
    monkeypatch.setattr(dist, "get_backend", lambda group: backend)
    assert bound_device() == bound
    assert takes_part_in_split(new) is takes_part
    assert can_split(new) is splits
    assert options.global_ranks_in_group == ([0, 1] if splits else [])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"options": SimpleNamespace()},
        {"options": None},
        {"options": SimpleNamespace(global_ranks_in_group=[]), "supports_splitting": False},
    ],
)
def test_a_group_whose_options_take_no_ranks_is_not_split(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options of a backend behind a wrapper of torch cannot be reached."""
    backend = SimpleNamespace(**options)
    world = SimpleNamespace(
        bound_device_id=torch.device("cuda:0"),
        name=lambda: "nccl",
        size=lambda: 2,
        _get_backend=lambda device: backend,
    )
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=world))
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    assert takes_part_in_split(None)
    assert not can_split(None)


@pytest.mark.parametrize(
    ("backend", "config", "name", "is_like_nccl"),
    [
        ("nccl", "cuda:nccl", "nccl", True),
        ("nccl-lazy", "cuda:nccl-lazy", "nccl-lazy", True),
        ("cpu:gloo,xpu:xccl", "cpu:gloo,xpu:xccl", "gloo", True),  # named after its first part
        ("cpu:gloo,cuda:nccl2", "cpu:gloo,cuda:nccl2", "gloo", True),
        ("undefined", "cuda:nccl", "nccl", True),  # nobody named one
        ("undefined", "cpu:gloo", "gloo", False),
        ("gloo", "cpu:gloo,cuda:gloo", "gloo", False),
        ("cpu:gloo,cuda:gloo", "cpu:gloo,cuda:gloo", "gloo", False),
    ],
)
def test_a_group_is_like_nccl_if_one_of_its_devices_is(
    backend: str, config: str, name: str, is_like_nccl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the answers that torch gives, since this torch may lack the backends."""
    group: Any = SimpleNamespace(name=lambda: name)
    monkeypatch.setattr(dist, "get_backend", lambda _: backend)
    monkeypatch.setattr(dist, "get_backend_config", lambda _: config)
    monkeypatch.setattr(torch_groups, "knows_group", lambda _: True)
    assert is_nccl(group) is is_like_nccl
    assert torch_groups.waits_for_peers(torch_groups.backend_of(group))


def test_a_default_group_whose_backend_nobody_named_is_that_of_torch() -> None:
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert meshkit.init().backend == "cpu:gloo"
        (entry,) = meshkit.build_mesh(dp=1).groups_report().groups
        group, limit = dist.group.WORLD, timedelta(seconds=5)
        assert group is not None
        with LoweredTimeouts().lower([group], limit):  # gloo raises in the thread that waits
            assert (entry.backend, timeout_of(group)) == ("cpu:gloo", limit)
    finally:
        leave_default_group()


def test_without_a_default_group_nothing_is_bound_or_split() -> None:
    assert bound_device() is None
    assert not takes_part_in_split(None)
    assert not can_split(None)


@pytest.mark.usefixtures("default_group")
def test_the_device_of_the_default_group_is_hidden_in_a_block() -> None:
    world: Any = dist.group.WORLD
    world.bound_device_id = torch.device("cuda:1")
    with meshkit.unbound():
        with meshkit.unbound():
            assert bound_device() is None
        assert bound_device() is None
    assert bound_device() == torch.device("cuda:1")
    with pytest.raises(ZeroDivisionError), meshkit.unbound():
        raise ZeroDivisionError
    assert bound_device() == torch.device("cuda:1")
    world.bound_device_id = None
    with meshkit.unbound():
        pass
    assert bound_device() is None


def test_a_torch_that_keeps_the_device_elsewhere_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Kept:
        """A group whose device cannot be taken away."""

        device = torch.device("cuda:1")
        bound_device_id = property(lambda self: self.device, lambda self, value: None)

    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=Kept()))
    with pytest.raises(meshkit.MeshkitError, match="does not let go"), hidden_device():
        pytest.fail("the block began")


def test_without_a_job_nothing_is_hidden() -> None:
    with meshkit.unbound():
        assert not dist.is_initialized()


def test_a_store_of_a_class_that_python_does_not_know_is_no_fake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a store comes back as a plain Store, and so does a FakeStore that was forgotten."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = dist.HashStore()
    assert not is_fake_store(store)
    assert is_fake_store(dist.PrefixStore("a", FakeStore()))
    assert is_fake_store(dist.Store())
    unknown = SimpleNamespace(
        Store=dist.HashStore, PrefixStore=dist.PrefixStore, DistError=dist.DistError
    )
    monkeypatch.setattr(torch_groups, "dist", unknown)
    assert not is_fake_store(store)
