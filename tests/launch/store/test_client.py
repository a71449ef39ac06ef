"""Calls to a store that end in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.store.client import address, store_lost_error
from meshkit.launch.store.deadline import Deadline, store_call, store_wait
from meshkit.launch.world import World

WORLD = World(1, 2, 1, None, None, None, None, None, "hand-written")


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (replace(WORLD, init_method="tcp://h:5"), ("h", 5)),
        (replace(WORLD, init_method="tcp://h"), ("h", None)),
        (replace(WORLD, init_method="tcp://h:x"), (None, None)),
        (replace(WORLD, init_method="tcp://h:70000"), (None, None)),
        (replace(WORLD, init_method="carrier://h:5"), (None, None)),
        (replace(WORLD, master_addr="a", master_port=7), ("a", 7)),
        (replace(WORLD, master_addr="a", master_port=7, init_method="env://"), ("a", 7)),
        (replace(WORLD, master_addr="a", master_port=7, init_method="tcp://h:5"), ("h", 5)),
        (WORLD, (None, None)),
    ],
)
def test_the_address_comes_from_init_method_or_the_launcher(
    world: World, expected: tuple[str | None, int | None]
) -> None:
    assert address(world) == expected


def test_a_wait_ends_with_the_keys_or_at_the_deadline() -> None:
    store = dist.HashStore()
    assert not store_wait(store, ["a"], Deadline.after(0.05))
    store.set("a", "b")
    assert store_wait(store, ["a"], Deadline.after(0))


class LostStore(dist.Store):
    """A store whose host is gone."""

    def wait(self, keys: list[str], timeout: object = None) -> None:
        raise dist.DistNetworkError("Connection reset by peer")


def test_a_lost_store_is_an_error_with_its_address() -> None:
    world = replace(WORLD, master_addr="a", master_port=7)
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        store_call(world, 1, lambda: store_wait(LostStore(), ["a"], Deadline.after(1)))
    assert isinstance(caught.value.__cause__, dist.DistNetworkError)
    assert str(caught.value) == (
        "rank 1 lost the store of the job.\n"
        "  It was at a:7; the process that hosts it has ended.\n"
        "  Fix: look at the log of rank 0 first, or of the torchrun agent."
    )
    assert caught.value.missing_ranks == (0,)


def test_a_silent_store_is_not_called_ended() -> None:
    error = store_lost_error(replace(WORLD, init_method="tcp://h:5"), silent=True)
    assert "It was at tcp://h:5; the process that hosts it is stopped, or the network" in str(error)
    error = store_lost_error(replace(WORLD, init_method="file:///f"), silent=True)
    assert error.evidence == ("It is file:///f, which does not answer.",)
    assert error.missing_ranks == ()
