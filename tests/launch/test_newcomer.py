"""A process that joins a running job: its local rank and its device, which no variable states."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.launch import join
from meshkit.launch.judges import Arrival, Process
from meshkit.launch.nodes import FROM_MACHINES, free_local_rank
from meshkit.testing.faults import Played, Strike, play

DEVICES = 4  # of each played machine


def play_devices(selected: list[int | None]) -> None:
    """Play a machine with several devices: each rank computes on the cpu, and records its index."""

    def unselected(world: meshkit.World, *_: object) -> meshkit.World:
        index = None if world.local_rank is None else world.local_rank
        return replace(world, device=torch.device("cuda", index), backend="gloo")

    def select(device: torch.device, local_rank: int | None) -> torch.device:
        selected.append(local_rank)
        return device if local_rank is None else torch.device("cpu", 0)

    patch = pytest.MonkeyPatch()
    patch.setattr(join, "_select_device", unselected, raising=True)
    patch.setattr(join, "select_device", select, raising=True)
    patch.setattr(join, "visible_devices", lambda _: DEVICES, raising=True)


def lose_and_admit(strike: Strike, before: str, after: str, lost: tuple[int, ...]) -> Any:
    """Kill ranks of pods without LOCAL_RANK, and admit those that are started in their place."""
    rank, url = int(os.environ["RANK"]), os.environ["MESHKIT_SPAWN"]
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ["MESHKIT_MACHINE"] = (after if strike.start else before)[rank]
    play_devices(selected := [])
    meshkit.init(arrival_timeout=40, init_method=url)
    mesh = meshkit.build_mesh(dp=-1)
    if not strike.start:
        try:
            with mesh.guard(timeout=20):
                if mesh.rank in lost:
                    strike.kill()
                dist.all_reduce(torch.ones(1), group=mesh.group())
        except meshkit.CollectiveError:
            mesh = mesh.recover()
    for _ in range(300):
        if mesh.size("dp") == len(before):
            break
        mesh = mesh.admit()
        time.sleep(0.1)
    dist.all_reduce(total := torch.ones(1), group=mesh.group())
    world = meshkit.init()
    result = (
        int(total),
        selected[-1],
        world.local_rank,
        os.environ.get("LOCAL_RANK"),
        world.sources["local_rank"] == FROM_MACHINES,
        os.environ["RANK"] == str(world.rank),
    )
    mesh.close()
    meshkit.shutdown()
    return (*result, "LOCAL_RANK" in os.environ)


@pytest.mark.parametrize(
    ("before", "after", "lost", "places"),
    [
        ("aabb", "aabb", (1,), "0101"),  # the device that the lost rank had
        ("aabb", "abbb", (1,), "0201"),  # on another machine: the first one that is free
        ("aaaa", "aaaa", (1, 2), "0123"),  # two, which may be admitted in any order
        ("aabb", "aacb", (2,), "0101"),  # on a machine of its own
    ],
)
def test_a_newcomer_takes_a_device_that_no_rank_of_its_machine_has(
    before: str, after: str, lost: tuple[int, ...], places: str
) -> None:
    expected = [int(place) for place in places]
    expected[2] = 0 if "c" in after else expected[2]
    played: Played = play(lose_and_admit, 4, (before, after, lost), timeout=120, restarts=1)
    texts = [outcome.text for outcome in played.outcomes.values()]
    wanted = [str((4, place, place, str(place), True, True, False)) for place in expected]
    assert texts in (wanted, [wanted[r] for r in (0, 2, 1, 3)] if len(lost) == 2 else wanted)


def arrival_on(machine: str, local_rank: int | None) -> Arrival:
    return Arrival(Process("host", 1, machine, "", "1"), {"local_rank": local_rank})


PLACED = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 9)), min_size=1, max_size=9
)


@given(PLACED, st.integers(0, 9))
def test_no_two_ranks_of_a_machine_get_one_local_rank(
    ranks: list[tuple[str, int | None]], first: int
) -> None:
    """If a rank that is no newcomer does not know its place, nobody finds a free one."""
    first = min(first, len(ranks))
    arrived = {rank: arrival_on(*fields) for rank, fields in enumerate(ranks)}
    newcomers = range(first, len(ranks))
    for machine in "abc":
        mates = [rank for rank, (own, _) in enumerate(ranks) if own == machine]
        known = [ranks[rank][1] for rank in mates if ranks[rank][1] is not None]
        asking = [rank for rank in mates if ranks[rank][1] is None]
        found = [free_local_rank(rank, arrived, newcomers) for rank in asking]
        if min(asking, default=first) < first:
            assert found == [None] * len(asking)
            continue
        assert len({*found}) == len(asking)
        assert not {*found} & {*known}
        assert found == sorted(found)
        assert {*range(max(found, default=0))} <= {*found, *known}  # the least ones
