"""The twenty faults of a rehearsed job, played until they hang, have their names from the judge."""

from __future__ import annotations

import random

import pytest

from meshkit import Layout
from meshkit.guard.verdict import judge_hang
from meshkit.rehearse.record import Operation
from meshkit.rehearse.report import RehearsalReport
from tests.laws.played_hangs import Op, Plan, Played, play
from tests.scenarios import rehearsed_faults
from tests.scenarios.rehearsed_faults import FAULTS

# a rank that skips a call over one group, and waits over another, shows as two groups in opposite
# orders: what it would have called later is in no table
KINDS = {
    "a collective over tp is skipped": "mismatch",
    "gradients are not reduced": "order",
    "groups in another order": "order",
    "an uneven vocabulary": "mismatch",
    "dp without cp": "order",
    "an odd micro batch": "order",
    "another root": "mismatch",
    "another dtype": "mismatch",
    "another shape": "mismatch",
    "another reduction": "mismatch",
    "another collective": "mismatch",
    "a missing recv": "message",
    "a swapped peer": "message",
    "another tag": "mismatch",
    "a message of another dtype": "mismatch",
    "a message of another size": "mismatch",
    "an extra barrier": "behind",
    "a log by one rank": "order",
    "another step count": "message",
    "a batch that does not divide": "left",
}
QUICK = ("a missing recv", "another root", "groups in another order")


def read_op(report: RehearsalReport, rank: int, op: Operation, index: dict[int, int]) -> Op:
    """Return an operation between the played ranks, which are the corners of the mesh."""
    members = report.traces[rank].groups[op.group].members
    content = str(op).removeprefix(op.name).strip()
    return Op(
        report.names.group(members).name,
        tuple(index[member] for member in members if member in index),
        op.name,
        ((op.shape, content),),
        op.line,
        index.get(op.peer, -1),
    )


def hang(report: RehearsalReport) -> Played:
    """Play the corners of a rehearsed job until nothing moves."""
    index = {rank: i for i, rank in enumerate(report.traces)}
    programs = {
        index[rank]: [
            read_op(report, rank, op, index)
            for op in trace.operations
            if op.name not in ("agree", "new_group")
        ]
        for rank, trace in report.traces.items()
    }
    raised = {index[rank]: len(programs[index[rank]]) for rank in report.raised}
    layout = Layout(**dict.fromkeys(rehearsed_faults.SIZES, 2))  # type: ignore[arg-type]
    return play(random.Random(1), layout, programs, Plan("left" if raised else "", raised))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in KINDS],
)
def test_a_rehearsed_fault_is_named_and_its_hang_has_a_kind(name: str) -> None:
    report = rehearsed_faults.play(name, few=True)
    assert FAULTS[name].is_named_by(report), report
    played, at = hang(report), report.names.coordinate
    odd = {i for i, rank in enumerate(report.traces) if FAULTS[name].is_odd(at(rank))}
    for on_nccl in (False, True):
        known = played.statuses(random.Random(2), on_nccl=on_nccl, ahead={})
        fault = judge_hang(played.layout, *known)
        assert fault.kind == KINDS[name]
        assert {*fault.root} == played.truth()[fault.kind]
        assert odd & {*fault.root} or name == "an extra barrier"  # for which all others are behind
        names = {wait.group.axes for wait in fault.calls.values()}
        assert FAULTS[name].axes in names or fault.kind == "left"


def test_all_rehearsed_faults_have_a_kind() -> None:
    assert KINDS.keys() == FAULTS.keys()
