"""Collectives beside torch's groups: the groups and the checks, not the times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from benchmarks import collectives
from benchmarks.collectives import check, mean_row, pairs_of
from meshkit.bench import calls as bench_collectives
from meshkit.bench.results import OPERATIONS


def measure() -> Any:
    """Return the row, the operations, and the members of both groups of each axis."""
    collectives.CALLS = dict.fromkeys(collectives.CALLS, 1)  # in this process alone
    row = collectives.measure(1)
    with meshkit.build_mesh(tp=2) as mesh:
        pairs = pairs_of(mesh)
        groups = {
            (pair.axis, *pair.members): [dist.get_process_group_ranks(g()) for g in pair.groups]
            for pair in pairs
        }
        distinct = all(pair.groups[0]() is not pair.groups[1]() for pair in pairs)
        measured = [(pair.axis, pair.op, pair.size) for pair in pairs]
        dist.barrier()
    return row, measured, groups, distinct


def test_four_ranks_measure_every_operation_axis_and_size_on_two_groups_of_the_same_ranks() -> None:
    results = meshkit.spawn(measure, 4, timeout=120)
    for rank, (row, measured, groups, distinct) in enumerate(results):
        assert row == results[0][0]  # of the slowest rank, so equal on all
        assert (row.scale, str(row.goal)) == (4, "low <= 1")
        every = [(a, op, n) for a in ("dp", "tp") for op in OPERATIONS for n in collectives.CALLS]
        assert measured == every
        dp = [rank % 2, rank % 2 + 2]
        tp = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert groups == {("dp", *dp): [dp, dp], ("tp", *tp): [tp, tp]}
        assert distinct


def test_the_figure_of_bench_and_that_of_a_loop_are_of_the_same_calls() -> None:
    row, *others = meshkit.spawn(collectives.measure_bench, 2, (2,), timeout=120)
    assert row.ours is not None
    assert row.theirs is not None
    assert min(row.ours, row.theirs) > 0
    assert (row.scale, str(row.goal), row.unit) == (2, "ratio <= 1.03", "us")
    assert all(other.theirs == row.theirs and other.ours == row.ours for other in others)


def test_the_mean_weighs_every_pair_the_same() -> None:
    # the second takes a thousand times as long; ratios 2 and 8, then 1 and 1
    times = torch.tensor([[[2.0, 1.0], [1.0, 1.0]], [[8e3, 1e3], [1e3, 1e3]]], dtype=torch.float64)
    row = mean_row(times)
    assert row.ratio is not None
    assert row.ratio.high == pytest.approx(4 - 0.25 * 3)
    assert row.ratio.low == pytest.approx(1 + 0.25 * 3)
    assert row.met is False


def check_all(tmp_path: Path) -> dict[str, bool]:
    """Return, for each operation on one rank, whether it is supported."""
    meshkit.init(device="cpu", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with meshkit.build_mesh(tp=1) as mesh:
            return {pair.op: check(pair, 0) for pair in pairs_of(mesh)}
    finally:
        meshkit.shutdown()


def spoil(monkeypatch: pytest.MonkeyPatch, op: str, begin: Callable[..., Any]) -> None:
    original = bench_collectives.begin_collective
    monkeypatch.setattr(
        bench_collectives,
        "begin_collective",
        lambda name, *given: (begin if name == op else partial(original, name))(*given),
    )


def shift(out: torch.Tensor, source: torch.Tensor, *_: Any) -> bench_collectives.Works:
    """Return a result whose elements 3 to 7 are wrong."""
    out.copy_(source)
    out[3:8] += 1
    return []


def fail(error: Exception) -> Callable[..., Any]:
    def begin(*_: Any) -> None:
        raise error

    return begin


@pytest.mark.parametrize(
    ("op", "begin", "message"),
    [
        ("all_to_all", shift, r"^all_to_all over dp: 5 wrong elements by meshkit$"),
        ("all_gather", lambda *_: [], "1024 wrong"),  # a call that does nothing
        ("all_reduce", fail(RuntimeError("Connection closed by peer")), "^Connection closed by"),
    ],
)
def test_what_is_wrong_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, begin: Any, message: str
) -> None:
    spoil(monkeypatch, op, begin)
    with pytest.raises(RuntimeError, match=message):
        check_all(tmp_path)


def test_both_groups_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[dist.ProcessGroup] = []

    def change_second(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> bench_collectives.Works:
        groups.append(group)
        out.copy_(source + (len(groups) > 1))
        return []

    spoil(monkeypatch, "all_reduce", change_second)
    with pytest.raises(RuntimeError, match="1024 wrong elements by torch"):
        check_all(tmp_path)
    assert groups[0] is not groups[1]


def test_an_unsupported_operation_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = RuntimeError("Backend gloo does not support reduce_scatter\nmore")
    spoil(monkeypatch, "reduce_scatter", fail(refusal))
    assert check_all(tmp_path) == {op: op != "reduce_scatter" for op in OPERATIONS}
