"""Collectives beside torch's groups: the groups and the checks, not the times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from benchmarks import collectives
from benchmarks.collectives import check, mean_row, pairs_of
from meshkit.bench import measure as bench_collectives
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


def test_the_mean_weighs_every_pair_the_same() -> None:
    # the second takes a thousand times as long; ratios 2 and 8, then 1 and 1
    times = torch.tensor([[[2.0, 1.0], [1.0, 1.0]], [[8e3, 1e3], [1e3, 1e3]]], dtype=torch.float64)
    row = mean_row(times)
    assert row.ratio is not None
    assert row.ratio.high == pytest.approx(4 - 0.25 * 3)
    assert row.ratio.low == pytest.approx(1 + 0.25 * 3)
    assert row.met is False


@contextmanager
def one_rank(tmp_path: Path) -> Iterator[meshkit.Mesh]:
    meshkit.init(device="cpu", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with meshkit.build_mesh(tp=1) as mesh:
            yield mesh
    finally:
        meshkit.shutdown()


def add_one(out: Any, source: Any, group: Any, later: bool) -> bench_collectives.Works:
    out.copy_(source)
    out[3:8] += 1
    return []


def do_nothing(out: Any, source: Any, group: Any, later: bool) -> bench_collectives.Works:
    return []


def lack_support(out: Any, source: Any, group: Any, later: bool) -> bench_collectives.Works:
    raise RuntimeError("Backend gloo does not support all_to_all")


def lose_peer(out: Any, source: Any, group: Any, later: bool) -> bench_collectives.Works:
    raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        (None, None),
        (lack_support, None),  # the operation is left out
        (add_one, "all_to_all over dp: 5 wrong elements by meshkit"),
        (do_nothing, "1024 wrong"),
        (lose_peer, "Connection closed by peer"),
    ],
)
def test_only_right_results_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Any, error: str | None
) -> None:
    collectives_of = bench_collectives.COLLECTIVES
    if begin:
        changed = replace(collectives_of["all_to_all"], begin=begin)
        monkeypatch.setitem(collectives_of, "all_to_all", changed)
    expects = pytest.raises(RuntimeError, match=error) if error else nullcontext()
    with one_rank(tmp_path) as mesh, expects:
        supported = {pair.op: check(pair, 0) for pair in pairs_of(mesh)}
        assert supported == {op: begin is None or op != "all_to_all" for op in OPERATIONS}
