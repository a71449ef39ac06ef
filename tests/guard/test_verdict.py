"""The judge of a hang on tables written by hand, and the report of each kind."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from meshkit import CollectiveError, Layout
from meshkit.guard.hang import hang_error
from meshkit.guard.verdict import judge_hang
from meshkit.launch.disagreement import RankStatus, TracedCall, TracedTensor
from meshkit.launch.judges import RankState, Sighting
from meshkit.launch.store import error_from_json, error_to_json

LAYOUT = Layout(dp=2, tp=2)  # dp: 0 and 2, 1 and 3; tp: 0 and 1, 2 and 3
GROUPS = ("dp", "tp")


def tensor(*sizes: int, dtype: str = "float32") -> TracedTensor:
    return sizes, dtype


def reduce(number: int, *tensors: TracedTensor, **more: Any) -> TracedCall:
    line = f"train.py:{number} (step)"
    return TracedCall(number, "all_reduce", tensors or (tensor(4),), line, **more)


def message(name: str, peer: int, **more: Any) -> TracedCall:
    return TracedCall(1, name, (tensor(2, 8),), "pipe.py:7 (stage)", peer, **more)


def waits(rank: int, axes: str, *calls: TracedCall, seconds: float = 8.0) -> RankStatus:
    """Return the status of a rank on gloo that waits in the last of some calls over a group."""
    begun = {name: len(calls) if name == axes else 0 for name in GROUPS}
    traced = {name: calls if name == axes else () for name in GROUPS}
    return RankStatus(
        rank, begun, calls[-1].name, axes, "here.py:1 (f)", waited=seconds, calls=traced
    )


def runs(rank: int, **more: Any) -> RankStatus:
    """Return the status of a rank that has begun nothing."""
    fields = {"line": "load.py:9 (load)", "calls": dict.fromkeys(GROUPS, ())} | more
    return RankStatus(rank, dict.fromkeys(GROUPS, 0), **fields)


def report(*statuses: RankStatus, **silent: RankState) -> CollectiveError:
    sights = {int(name[1:]): Sighting(state, "host b, pid 3") for name, state in silent.items()}
    return hang_error("x.", LAYOUT, {status.rank: status for status in statuses}, sights)


IN_DP = {rank: waits(rank, "dp", reduce(1)) for rank in range(4)}
BUSY = report(waits(0, "dp", reduce(1)), runs(2), *(IN_DP[rank] for rank in (1, 3)))
ODD = waits(2, "dp", reduce(1, tensor(5)))
CLOSED = runs(2, ended_by="mesh.close()")
# the report, its root, its first line, and its fix
REPORTS: dict[str, tuple[CollectiveError, str, str]] = {
    "busy": (
        BUSY,
        "Behind: rank 2 (dp=1 tp=0) has begun 0 of 1 collectives over dp; in no collective, "
        "load.py:9 (load).",
        "look at rank 2 first",
    ),
    "dead": (
        report(*(IN_DP[rank] for rank in (0, 1, 3)), r2=RankState.ENDED),
        "Silent: rank 2 (dp=1 tp=0): host b, pid 3; it has ended.",
        "look at rank 2 first",
    ),
    "stopped": (
        report(*(IN_DP[rank] for rank in (0, 1, 3)), r2=RankState.STOPPED),
        "Silent: rank 2 (dp=1 tp=0): host b, pid 3; it is stopped.",
        "look at rank 2 first",
    ),
    "left": (
        report(IN_DP[0], CLOSED),
        "Behind: rank 2 (dp=1 tp=0) has begun 0 of 1 collectives over dp; has called mesh.close().",
        "look at rank 2 first",
    ),
    "behind": (
        report(IN_DP[0], runs(2, left_guard=1)),
        "Behind: rank 2 (dp=1 tp=0) has begun 0 of 1 collectives over dp; has left the guard.",
        "look at rank 2 first",
    ),
    "mismatch": (
        report(IN_DP[0], ODD),
        "Mismatch: rank 0 in all_reduce over dp, [4] float32, begun at train.py:1 (step); "
        "rank 2 in all_reduce over dp, [5] float32, begun at train.py:1 (step): these are one "
        "call of the group, and differ.",
        "make the sizes of all_reduce over dp equal: [4] on rank 0 (dp=0 tp=0), "
        "[5] on rank 2 (dp=1 tp=0)",
    ),
    "order": (
        report(*(waits(rank, GROUPS[rank in (1, 2)], reduce(1)) for rank in range(4))),
        "Order: ranks 0, 3 in all_reduce over dp, [4] float32, begun at train.py:1 (step); "
        "ranks 1-2 in all_reduce over tp, [4] float32, begun at train.py:1 (step): the groups "
        "are used in opposite orders, so these ranks wait for each other.",
        "make all_reduce over dp and all_reduce over tp in one order on all ranks",
    ),
    "message": (
        report(waits(0, "dp", message("send", 2)), waits(2, "dp", message("send", 0))),
        "Message: rank 0 in send to rank 2 over dp, [2, 8] float32, begun at pipe.py:7 (stage); "
        "rank 2 in send to rank 0 over dp, [2, 8] float32, begun at pipe.py:7 (stage): the "
        "other end does not come: rank 2 begins no receive from rank 0, rank 0 begins no "
        "receive from rank 2.",
        "give each send one receive, in one order, on ranks 0, 2",
    ),
    "wedge": (
        report(IN_DP[0], IN_DP[2]),
        "Wedge: ranks 0, 2 in all_reduce over dp, [4] float32, begun at train.py:1 (step): all "
        "have begun it, with equal sizes, and it completes on none.",
        "look at the network and the devices of ranks 0, 2: the calls are equal",
    ),
    "late": (
        report(IN_DP[0], waits(2, "dp", reduce(1), seconds=0.5)),
        "Late: rank 2 (dp=1 tp=0) began all_reduce over dp 7.5 s after the first.",
        "look at rank 2 first",
    ),
    "unknown": (
        report(IN_DP[0], r2=RankState.UNKNOWN, r1=RankState.BUSY),
        "Silent: rank 2 (dp=1 tp=0): host b, pid 3; not known here whether it runs.",
        "look at ranks 1-3 first",  # 3 is unknown too, and may wait for 1
    ),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_the_report_of_a_kind(kind: str) -> None:
    error, first, fix = REPORTS[kind]
    assert (error.kind, error.evidence[0], error.fix_text.partition(";")[0]) == (kind, first, fix)
    copy = error_from_json(error_to_json(error))
    assert isinstance(copy, CollectiveError)
    assert copy.kind == kind


def test_ranks_that_wait_have_their_call_and_how_long() -> None:
    line = "wait 8.0 s in all_reduce over dp, [4] float32, begun at train.py:1 (step)."
    assert BUSY.evidence[1:] == (f"Ranks 0-1, 3: {line}",)


def on_nccl(rank: int, **calls: tuple[TracedCall, ...]) -> RankStatus:
    """Return the status of a rank whose device waits, and whose host is in user code."""
    begun = {axes: len(made) for axes, made in calls.items()}
    return RankStatus(rank, begun, line="train.py:3 (f)", waited=8.0, sees_waits=False, calls=calls)


def judge(*statuses: RankStatus) -> tuple[str, tuple[int, ...]]:
    return judge_hang(LAYOUT, {status.rank: status for status in statuses}, {})[:2]


@pytest.mark.parametrize("state", ["begun", "started"])
def test_two_groups_in_opposite_orders_where_all_calls_are_begun(state: str) -> None:
    """The device of a rank waits in the first call, known by its state or by its place."""
    first: dict[str, Any] = {"state": state, "order": 1}
    second: dict[str, Any] = {"state": "begun", "order": 2}
    table = [
        on_nccl(
            rank,
            dp=(reduce(1, **(first if rank in (0, 3) else second)),),
            tp=(reduce(1, **(second if rank in (0, 3) else first)),),
        )
        for rank in range(4)
    ]
    assert judge(*table) == ("order", (0, 1, 2, 3))
    unordered = [
        on_nccl(status.rank, **{axes: (reduce(1),) for axes in GROUPS}) for status in table
    ]
    assert judge(*unordered) == ("unknown", ())  # a wedge, or an order: no call says which


def test_a_wait_whose_call_is_unknown_names_no_rank_that_waits_for_it() -> None:
    """Rank 2 waits in a work or in a group of the user; rank 1 may have skipped the other end."""
    reduces = [waits(r, axes, reduce(1)) for r, axes in [(0, "dp"), (1, "tp"), (3, "dp")]]
    lost = RankStatus(2, dict.fromkeys(GROUPS, 0), "wait", "", "here.py:2 (f)", waited=8.0)
    assert judge(*reduces, lost) == ("unknown", ())
    in_own_group = replace(lost, function="all_reduce", group="undefined")
    assert judge(*reduces, in_own_group) == ("unknown", ())
    error = report(*reduces, lost)
    assert error.fix_text.startswith("do all ranks reach here.py:2 (f)? Look there")


def test_a_chain_of_waits_through_three_groups_ends_at_its_root() -> None:
    """Rank 0 waits over tp for 1, which waits over dp for 3, which runs; 2 waits over tp."""
    table = [waits(0, "tp", reduce(1)), waits(1, "dp", reduce(1)), waits(2, "tp", reduce(1))]
    assert judge(*table, runs(3)) == ("busy", (3,))


@pytest.mark.parametrize(
    ("name", "kind"), [("all_gather", "mismatch"), ("all_to_all", "wedge"), ("scatter", "wedge")]
)
def test_sizes_of_an_uneven_collective_may_differ(name: str, kind: str) -> None:
    table = [waits(rank, "dp", TracedCall(1, name, (tensor(4 + rank),))) for rank in (0, 2)]
    runners = [runs(rank) for rank in (1, 3)]
    assert judge(*table, *runners)[0] == kind


def test_the_majority_of_a_group_is_right() -> None:
    layout = Layout(dp=3)
    table = {rank: waits(rank, "dp", reduce(1, tensor(4 + (rank == 1)))) for rank in range(3)}
    assert judge_hang(layout, table, {})[:2] == ("mismatch", (1,))


def test_messages_without_numbers_are_paired_by_what_is_open() -> None:
    send, receive = message("send", 2)._replace(number=0), message("recv", 0)._replace(number=0)
    rest = [runs(rank) for rank in (1, 3)]
    assert judge(waits(0, "dp", send), waits(2, "dp", receive), *rest) == ("wedge", (0, 2))
    passed = runs(2, left_guard=1)
    assert judge(waits(0, "dp", send), passed, *rest) == ("message", (2,))
    done = runs(2, waited=8.0, calls={"dp": (receive._replace(state="completed"),), "tp": ()})
    assert judge(waits(0, "dp", send), done, *rest)[0] == "unknown"  # it may be on its way


SENT = message("send", 2)
# the calls of ranks 0 and 2 that are one and differ, and the fix
DIFFERENCES: dict[str, tuple[TracedCall, TracedCall, str]] = {
    "operation": (
        reduce(1),
        reduce(1)._replace(name="broadcast"),
        "make one call over dp: all_reduce on {}, broadcast on {}",
    ),
    "sizes of several": (
        reduce(1, tensor(4), tensor(2, dtype="bool"), more=3),
        reduce(1, tensor(4), tensor(2, 1, dtype="bool"), more=3),
        "make the sizes of all_reduce over dp equal: [4], [2] on {}, [4], [2, 1] on {}",
    ),
    "number of tensors": (
        reduce(1, more=3),
        reduce(1, more=4),
        "make the tensors of all_reduce over dp equal: [4] float32, and 3 more on {}, "
        "[4] float32, and 4 more on {}",
    ),
    "dtype": (
        SENT,
        message("recv", 0)._replace(tensors=(tensor(2, 8, dtype="bool"),)),
        "make the dtype of the message over dp equal: float32 on {}, bool on {}",
    ),
    "tag": (
        SENT._replace(tag=3),
        message("recv", 0),
        "make the tag of the message over dp equal: 3 on {}, 0 on {}",
    ),
    "root": (
        reduce(1, root=2)._replace(name="broadcast"),
        reduce(1, root=0)._replace(name="broadcast"),
        "make the root of broadcast over dp equal: rank 2 on {}, rank 0 on {}",
    ),
}


@pytest.mark.parametrize("part", DIFFERENCES)
def test_the_fix_of_a_mismatch_names_what_differs(part: str) -> None:
    own, other, fix = DIFFERENCES[part]
    error = report(waits(0, "dp", own), waits(2, "dp", other), runs(1), runs(3))
    assert (error.kind, error.root) == ("mismatch", (0, 2))
    text = fix.format("rank 0 (dp=0 tp=0)", "rank 2 (dp=1 tp=0)")
    assert error.fix_text.partition(";")[0] == text


def test_calls_keep_their_fields_on_the_way_to_another_rank() -> None:
    status = waits(
        0, "dp", *(call for own, other, _ in DIFFERENCES.values() for call in (own, other))
    )
    assert RankStatus.from_facts(0, json.loads(json.dumps(status.to_facts()))) == status


def test_the_fix_of_two_mismatches_is_that_of_the_first() -> None:
    """The streams of rank 0 are in two calls, each of which differs from that of a peer."""

    def on_device(rank: int, **calls: TracedCall) -> RankStatus:
        begun = {axes: call._replace(state="started") for axes, call in calls.items()}
        traced = {axes: (call,) for axes, call in begun.items()}
        return RankStatus(rank, dict.fromkeys(calls, 1), sees_waits=False, calls=traced)

    statuses = [
        on_device(0, dp=reduce(1), tp=reduce(1, tensor(7))),
        on_device(1, tp=reduce(1, tensor(8))),
        on_device(2, dp=reduce(1, tensor(5))),
        on_device(3),
    ]
    error = report(*statuses)
    assert (error.kind, error.root) == ("mismatch", (0, 1, 2))
    fix = "make the sizes of all_reduce over dp equal: [4] on rank 0 (dp=0 tp=0), [5] on rank 2 "
    assert error.fix_text.startswith(fix)


def test_a_root_that_is_unknown_differs_from_none() -> None:
    """gloo lets some ranks of a broadcast go on, of which no root is known."""
    layout, call = Layout(dp=4), reduce(1)._replace(name="broadcast")
    done = call._replace(state="completed")
    table = {rank: waits(rank, "dp", call._replace(root=root)) for rank, root in [(1, 0), (3, 3)]}
    gone_on = {rank: waits(rank, "dp", done, reduce(2)) for rank in (0, 2)}
    assert judge_hang(layout, table | gone_on, {})[:2] == ("mismatch", (1, 3))
    assert judge_hang(layout, {1: table[1], **gone_on}, {})[0] == "unknown"


def test_a_message_that_waits_on_gloo_is_not_begun_by_a_rank_in_user_code() -> None:
    """Messages are in no trace of gloo: stage 1 has received one, and sleeps before its send."""
    layout = Layout(pp=3)
    stages = [
        RankStatus(0, {"pp": 1}, line="train.py:9 (step)", left_guard=1),
        RankStatus(1, {"pp": 1}, line="load.py:9 (load)"),
        RankStatus(2, {"pp": 1}, "recv", "pp", "pipe.py:7 (stage)", waited=8.0),
    ]
    receive = message("recv", 1)._replace(number=0)
    stages[2] = replace(stages[2], calls={"pp": (receive,)})
    assert judge_hang(layout, dict(enumerate(stages)), {})[:2] == ("busy", (1,))
    stages[2] = replace(stages[2], waited=0.5)  # the message may be on its way
    assert judge_hang(layout, dict(enumerate(stages)), {})[0] == "unknown"


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((1, 1), ("unknown", ())),  # of both ranks: an isend with another tag, for example
        ((2, 1), ("busy", (1,))),
        ((2, 4, 2), ("unknown", (0, 1))),
        ((2, 3, 2), ("busy", (1,))),
    ],
)
def test_a_rank_that_has_begun_as_many_messages_as_all_others_may_have_come(
    counts: tuple[int, ...], verdict: tuple[str, tuple[int, ...]]
) -> None:
    layout, receive = Layout(pp=len(counts)), message("recv", 1)._replace(number=0)
    stages = [
        RankStatus(0, {"pp": counts[0]}, "recv", "pp", "pipe.py:7 (stage)", waited=8.0),
        RankStatus(1, {"pp": counts[1]}, line="load.py:9 (load)"),
        *(RankStatus(2, {"pp": n}, line="train.py:9 (step)", left_guard=1) for n in counts[2:]),
    ]
    stages[0] = replace(stages[0], calls={"pp": (receive,)})
    assert judge_hang(layout, dict(enumerate(stages)), {})[:2] == verdict
