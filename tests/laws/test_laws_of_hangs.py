"""A hang that is played has the root and the kind that the judge finds, or the judge cannot know.

The player (``played_hangs.py``) knows what each rank does; the judge knows the table only.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from meshkit import Layout
from meshkit.guard.verdict import HangVerdict, judge_hang
from meshkit.launch.disagreement import RankStatus, TracedCall
from meshkit.launch.judges import RankState, Sighting
from tests.laws.played_hangs import (
    FAULTS,
    Plan,
    Played,
    draw_layout,
    draw_programs,
    last_of,
    plant,
    play,
)

Knowledge = tuple[dict[int, RankStatus], dict[int, Sighting]]


def draw_hang(rng: random.Random, kind: str, most: int) -> Played:
    """Play programs with a fault of a kind until ranks hang."""
    while True:
        layout = draw_layout(rng, most)
        programs = draw_programs(rng, layout, rng.randint(2, 12))
        played = play(rng, layout, programs, plant(rng, kind, layout, programs))
        if played.truth():
            return played


def draw_ahead(rng: random.Random, played: Played) -> dict[int, int]:
    """Return how many calls the host of each rank is ahead of its device."""
    return {rank: rng.choice([0, 0, 1, 3]) for rank in played.programs}


def forget(rng: random.Random, played: Played, known: Knowledge) -> tuple[Knowledge, set[int]]:
    """Remove some of what is known of up to a third of the ranks; return these too."""
    statuses, silent = {**known[0]}, {**known[1]}
    ranks = [*played.programs]
    few = rng.sample(ranks, rng.randint(1, max(1, len(ranks) // 3)))
    for rank in few:
        status = statuses.pop(rank, None)
        if status is None or rng.random() < 0.4:
            silent.pop(rank, None)
            if rng.random() < 0.5:
                silent[rank] = Sighting(RankState.UNKNOWN, "host b, pid 3")
        else:
            statuses[rank] = forget_fields(rng, status)
    return (statuses, silent), {*few}


def forget_fields(rng: random.Random, status: RankStatus) -> RankStatus:
    """Return a status without some of its fields."""
    if rng.random() < 0.3:
        status = replace(status, begun={})
    if rng.random() < 0.3 and not status.sees_waits:
        status = replace(status, waited=0.0)
    if rng.random() < 0.3 and not (status.sees_waits or status.has_left):  # where is it?
        status = replace(status, line="", left_guard=0)
    if rng.random() < 0.2:
        return replace(status, calls={})
    if rng.random() < 0.2:  # a short ring has dropped the oldest
        return replace(status, calls={axes: last_of(c, 2) for axes, c in status.calls.items()})
    fields = rng.sample(["tensors", "name", "order", "number", "state"], rng.randint(1, 2))
    calls = {
        axes: tuple(forget_call(call, fields) for call in made)
        for axes, made in status.calls.items()
    }
    return replace(status, calls=calls)


def forget_call(call: TracedCall, fields: Sequence[str]) -> TracedCall:
    """Return a call without some of its fields; a message is still known to be one."""
    nothing = TracedCall(name=call.name if call.is_message else "")
    nothing = nothing._replace(state="begun" if call.is_open else call.state)
    return call._replace(**{name: getattr(nothing, name) for name in fields})


def check(fault: HangVerdict, truth: Mapping[str, set[int]], what: object) -> None:
    """Check that a verdict is not wrong, whatever it knew."""
    root = {*fault.root}
    if fault.kind in ("", "unknown"):
        assert not root or root & set().union(*truth.values()), (fault, truth, what)
        return
    assert fault.kind in truth, (fault, truth, what)
    if fault.kind == "mismatch":  # with contents unknown, nothing may say which one is odd
        assert root & truth["mismatch"], (fault, truth, what)
    else:
        assert root
        assert root <= truth[fault.kind], (fault, truth, what)


def around(played: Played, truth: Mapping[str, set[int]]) -> set[int]:
    """Return the ranks at the root, and all that share a group with one of them."""
    root = set().union(*truth.values())
    groups = {op.group for program in played.programs.values() for op in program}
    return root.union(*(group for group in groups if not root.isdisjoint(group)))


def judge_hangs(seed: int, count: int, most: int) -> Counter[str]:
    """Play hangs of each kind, and return the kinds found, and how many were decided."""
    found: Counter[str] = Counter()
    for number in range(count):
        rng = random.Random(seed + number)
        kind = FAULTS[number % len(FAULTS)]
        played, on_nccl = draw_hang(rng, kind, most), rng.random() < 0.5
        ahead = draw_ahead(rng, played) if on_nccl else {}
        truth, what = played.truth(ahead), (seed + number, played.layout, played.plan, on_nccl)
        known = played.statuses(rng, on_nccl=on_nccl, ahead=ahead)
        fault = judge_hang(played.layout, *known)
        assert fault.kind in truth, (fault, truth, what)
        assert {*fault.root} == truth[fault.kind], (fault, truth, what)
        if kind not in ("behind", "order", "message"):  # which may become others
            assert kind == fault.kind or kind == "mismatch", (fault, truth, what)
        found[fault.kind] += 1
        few, lost = forget(rng, played, known)
        partial = judge_hang(played.layout, *few)
        check(partial, truth, what)
        is_decided = partial.kind not in ("", "unknown")
        found["decided"] += is_decided
        if lost.isdisjoint(around(played, truth)):
            found["sure"] += 1
            assert is_decided, (partial, truth, what)
    return found


def test_a_hang_has_the_root_that_was_played() -> None:
    found = judge_hangs(seed=0, count=108, most=64)
    assert {*FAULTS} <= {*found}
    assert found["sure"] > 0
    assert found["decided"] > 50, found


@pytest.mark.nightly
def test_a_thousand_hangs_have_the_roots_that_were_played() -> None:
    found = judge_hangs(seed=10_000, count=1008, most=256)
    assert min(found[kind] for kind in FAULTS) >= 20, found
    assert found["sure"] >= 20, found
    assert found["decided"] > 500, found


def judge_healthy(seed: int, count: int) -> Counter[str]:
    """Judge correct programs on their way, each rank seen at another time."""
    found: Counter[str] = Counter()
    for number in range(count):
        rng = random.Random(seed + number)
        layout = draw_layout(rng, rng.choice([8, 16, 32]))
        programs = draw_programs(rng, layout, rng.randint(1, 8))
        slow = rng.choice([0.0, 0.05])
        until = rng.uniform(0.01, 0.25 if not slow else 40)
        played, on_nccl = (
            play(rng, layout, programs, Plan(), until=until, slow=slow),
            rng.random() < 0.5,
        )
        ahead = draw_ahead(rng, played) if on_nccl else {}
        jitter = rng.choice([0.0, 0.02, 0.3])
        fault = judge_hang(
            layout, *played.statuses(rng, on_nccl=on_nccl, ahead=ahead, jitter=jitter)
        )
        assert fault.kind in ("", "busy", "late"), (fault, seed + number, layout, on_nccl)
        found[fault.kind] += 1
    return found


def test_no_rank_of_a_healthy_job_is_at_fault() -> None:
    found = judge_healthy(seed=0, count=300)
    assert found["busy"] > 50
    assert found[""] > 10, found


@pytest.mark.nightly
def test_no_rank_of_ten_thousand_healthy_tables_is_at_fault() -> None:
    judge_healthy(seed=100_000, count=10_000)


def test_a_table_of_2000_ranks_is_judged_in_less_than_a_second() -> None:
    """Ranks wait over tp, dp and all ranks; one of them runs user code."""
    layout = Layout(dp=125, cp=2, tp=8)
    programs = draw_programs(random.Random(3), layout, 12)
    played = play(random.Random(4), layout, programs, Plan("busy", {777: 9}))
    known = played.statuses(random.Random(5), on_nccl=True, ahead=dict.fromkeys(programs, 2))
    began = time.process_time()
    fault = judge_hang(layout, *known)
    assert (fault.kind, fault.root) == ("busy", (777,))
    assert time.process_time() - began < 1
