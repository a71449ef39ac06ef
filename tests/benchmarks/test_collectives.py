"""Collectives beside torch's groups: what is compared and checked, never how fast."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import meshkit
from benchmarks import collectives
from benchmarks.collectives import (
    ALL,
    CALLS,
    axis_groups,
    checked,
    main,
    mean_row,
    paired,
    rows_of,
    torch_group,
)
from benchmarks.rows import Row
from meshkit.bench import collectives as bench_collectives
from meshkit.bench.results.collectives import OPERATIONS

from . import collectives_jobs as jobs

CPU = torch.device("cpu")


# --- what is compared --------------------------------------------------------------------------


def test_axis_groups_are_those_of_the_layout() -> None:
    layout = meshkit.factor_world(24, pp=2, sp=3, tp=2)
    for index, axis in enumerate(layout.axes):
        assert axis_groups(layout.shape, index) == layout.groups(axis).tolist()
    assert axis_groups((2, 3), 0) == [[0, 3], [1, 4], [2, 5]]


def test_four_ranks_measure_every_operation_axis_and_size_on_two_groups_of_the_same_ranks() -> None:
    found = meshkit.spawn(jobs.measured, 4, timeout=120)
    wanted = [
        f"{op} of {size // 1024} KiB over {axis}"
        for op in OPERATIONS
        for axis in ("dp", "tp")
        for size in CALLS
    ]
    for rank, (rows, groups, distinct, slowest) in enumerate(found):
        assert rows == found[0][0]  # of the slowest rank of all, so equal on all
        assert [row.what for row in rows] == [*wanted, ALL]
        assert all(row.ours and row.theirs and row.scale == 4 for row in rows)
        assert [str(row.goal) for row in rows if row.goal] == ["low <= 1"]
        dp = [rank % 2, rank % 2 + 2]
        tp = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert groups == {("dp", *dp): [dp, dp], ("tp", *tp): [tp, tp]}
        assert distinct
        assert slowest == [4.0, 9.0]


def test_the_mean_weighs_every_pair_the_same() -> None:
    # the second takes a thousand times as long; ratios 2 and 8, then 1 and 1
    times = torch.tensor([[[2.0, 1.0], [1.0, 1.0]], [[8e3, 1e3], [1e3, 1e3]]], dtype=torch.float64)
    row = mean_row(4, times)
    assert row.ratio is not None
    assert row.ratio.high == pytest.approx(4 - 0.25 * 3)
    assert row.ratio.low == pytest.approx(1 + 0.25 * 3)
    assert row.met is False


# --- one live rank ---------------------------------------------------------------------------


@contextmanager
def alone(tmp_path: Path) -> Iterator[meshkit.Mesh]:
    meshkit.init(device="cpu", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with meshkit.build_mesh(tp=1) as mesh:
            yield mesh
    finally:
        meshkit.shutdown()


def of_all(tmp_path: Path) -> dict[str, str | None]:
    """What the check says of each operation."""
    with alone(tmp_path) as mesh, paired(mesh) as pairs:
        return {pair.op: checked(pair, 0, CPU) for pair in pairs}


def spoil(monkeypatch: pytest.MonkeyPatch, op: str, begin: bench_collectives.Begin) -> None:
    monkeypatch.setitem(
        bench_collectives.COLLECTIVES, op, replace(bench_collectives.COLLECTIVES[op], begin=begin)
    )


def test_right_results_are_timed(tmp_path: Path) -> None:
    assert of_all(tmp_path) == dict.fromkeys(OPERATIONS)


def test_a_wrong_result_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shifts(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> bench_collectives.Works:
        out.copy_(source)
        out[3:8] += 1
        return []

    spoil(monkeypatch, "all_to_all", shifts)
    told = "^all_to_all of 4 KiB over dp: 5 and 5 wrong elements by meshkit's group and torch's$"
    with pytest.raises(RuntimeError, match=told):
        of_all(tmp_path)


def test_both_groups_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[dist.ProcessGroup] = []

    def turned(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> bench_collectives.Works:
        groups.append(group)
        out.copy_(source + (len(groups) > 1))
        return []

    spoil(monkeypatch, "all_reduce", turned)
    with pytest.raises(RuntimeError, match=": 0 and 1024 wrong elements"):
        of_all(tmp_path)
    assert groups[0] is not groups[1]


def test_a_call_that_does_nothing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "all_gather", lambda out, source, group, later: [])
    with pytest.raises(RuntimeError, match="1024 and 1024 wrong"):
        of_all(tmp_path)


def without(op: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> bench_collectives.Works:
        raise error

    spoil(monkeypatch, op, fails)


@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError])
def test_what_the_backend_lacks_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[RuntimeError]
) -> None:
    said = "Backend gloo does not support reduce_scatter"
    without("reduce_scatter", kind(f"{said}\nmore lines of c10d"), monkeypatch)
    with alone(tmp_path) as mesh, paired(mesh) as pairs, torch_group() as gate:
        rows = {row.what: row for row in rows_of(pairs, 1, CPU, gate)}
    lacking = {what for what, row in rows.items() if row.lacks == said and row.ours is None}
    assert lacking == {what for what in rows if what.startswith("reduce_scatter")}
    assert len(lacking) == 4
    assert all(row.ratio is not None for what, row in rows.items() if what not in lacking)


def test_any_other_error_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without("all_reduce", RuntimeError("Connection closed by peer"), monkeypatch)
    with pytest.raises(RuntimeError, match=r"^Connection closed by peer$"):
        of_all(tmp_path)


# --- by itself -------------------------------------------------------------------------------


def test_n_is_refused_under_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        main(["-n", "2"])
    assert "a launcher has started this one already" in capsys.readouterr().err


def test_odd_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["-n", "3"])
    assert "3 is odd, but the mesh has tp=2" in capsys.readouterr().err


def test_it_starts_its_ranks_and_prints_rank_0s_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[object, ...]] = []

    def spawn(*given: object, **_: object) -> list[list[Row]]:
        asked.append(given)
        return [[Row("of rank 0", 8, "torch", "s")], []]

    monkeypatch.setattr(meshkit, "spawn", spawn)
    assert main(["-n", "8"]) == 0
    assert asked == [(collectives.measure, 8, (25,))]
    assert "of rank 0 " in capsys.readouterr().out
