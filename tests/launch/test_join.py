"""init and shutdown on real processes."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import meshkit

from . import jobs


def test_who_am_i() -> None:
    results = meshkit.spawn(jobs.who, 3, timeout=60)
    assert results == [([r, 3, r, 3, 0, 1], "spawn", "cpu", "gloo", 1) for r in range(3)]


def test_init_is_idempotent_and_refuses_what_contradicts_it() -> None:
    for again, same, group, told in meshkit.spawn(jobs.idempotent, 2, timeout=60):
        assert (again, same, group) == (True, True, True)
        assert told[0] == (
            "init(backend='nccl'): the default process group already exists, with backend=gloo.\n"
            "  Fix: the first init() of the program decides; or meshkit.shutdown() before this one."
        )
        assert "init(rank=5): the default process group already exists, with rank=" in told[1]
        assert "with timeout=0:00:50." in told[2]
        assert "with arrival_timeout=0:00:50." in told[3]


def test_the_seed_goes_to_python_numpy_and_torch_alike_on_all_ranks() -> None:
    first, second = meshkit.spawn(jobs.seeded, 2, (7,), timeout=60)
    assert first == second
    assert meshkit.spawn(jobs.seeded, 1, (8,), timeout=60)[0] != first
    assert all(a != b for a, b in zip(*meshkit.spawn(jobs.seeded, 1, (8,)), first, strict=True))


def test_without_a_seed_the_generators_are_left_alone() -> None:
    runs = [meshkit.spawn(jobs.seeded, 1, (None,), timeout=60)[0][0] for _ in range(2)]
    assert runs[0] != runs[1]


def test_join_and_leave_ten_times_on_one_store() -> None:
    results = meshkit.spawn(jobs.again_and_again, 3, (10,), timeout=60)
    assert results == [([3, False] * 10, [*range(1, 11)], 0)] * 3


def test_a_rank_that_never_comes_is_named_within_the_deadline() -> None:
    results = meshkit.spawn(jobs.one_never_joins, 4, (1.5,), timeout=60)
    for rank in (0, 1, 3):
        text, missing, seconds, initialised = results[rank]
        assert missing == (2,)
        assert 1.5 <= seconds < 4
        assert not initialised
        assert text == (
            "1 of 4 ranks did not arrive at init(timeout=600, arrival_timeout=1.5) within 1.5 s.\n"
            f"  Missing: 2. Arrived: 0-1, 3 on {socket.gethostname()}.\n"
            "  Fix: look at the logs of rank 2 first."
        )


def test_two_times() -> None:
    def of(**arguments: float) -> object:
        return meshkit.spawn(jobs.times_of, 1, (arguments,), timeout=60)[0]

    seconds = [timedelta(seconds=n) for n in (300, 20, 40)]
    assert of() == (None, seconds[0])
    assert of(timeout=20) == (seconds[1], seconds[1])
    assert of(arrival_timeout=40) == (None, seconds[2])
    assert of(timeout=20, arrival_timeout=40) == (seconds[1], seconds[2])


def test_explicit_arguments_win(tmp_path: Path) -> None:
    results = meshkit.spawn(jobs.explicit, 2, (f"{tmp_path}/store",), timeout=60)
    for said, rank, group_rank, local_rank, sources in results:
        assert rank == group_rank == 1 - said
        assert local_rank == 0
        assert {sources[name] for name in ("rank", "world_size", "local_rank")} == {"argument"}


def test_arguments_that_cannot_be_are_refused_before_anything_is_touched() -> None:
    (told,) = meshkit.spawn(jobs.refused_arguments, 1, timeout=60)
    assert [text.partition(":")[0] for text in told] == [
        *("SpecError",) * 4,
        *("LaunchError",) * 6,
        "False",
    ]
    assert told[0] == (
        "SpecError: init(seed=-1): seed is -1.\n"
        "  Python, numpy and torch all take ints from 0 to 4294967295.\n"
        "  Fix: init(seed=0)."
    )
    assert told[4] == (
        "LaunchError: init(device='toaster'): torch knows no device 'toaster'.\n"
        "  Fix: device='cpu' or 'cuda'."
    )
    assert told[8].startswith("LaunchError: RANK=9 must be below WORLD_SIZE=8.")
    assert told[9] == (
        "LaunchError: init(init_method='carrier://pigeon', rank=0, world_size=2): rank 0 of 2 does "
        "not know where to meet the others.\n"
        "  init_method='carrier://pigeon', MASTER_ADDR=None, MASTER_PORT=None (spawn).\n"
        "  Fix: export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500, or "
        'init(init_method="tcp://host:29500") or init(init_method="file:///shared/new-file").'
    )
