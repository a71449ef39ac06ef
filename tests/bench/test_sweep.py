"""A sweep on real ranks: what is measured, alone and in company; wrong, slow, gone, interrupted."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit import Layout, SpawnError
from meshkit.bench.collectives import COLLECTIVES, Works
from meshkit.bench.results.collectives import OPERATIONS
from meshkit.bench.results.measurement import Case, Measurement
from meshkit.bench.results.run import plan_cases
from meshkit.bench.results.targets import ALONE, CONCURRENT, OVERLAP, parse_targets
from meshkit.bench.run import Request, agree_on_hosts, run_benchmark
from meshkit.bench.sweep import Sweep, SweepOptions
from meshkit.launch import process
from tests.bench.faulty_calls import (
    raise_not_supported,
    return_wrong_elements,
    run_out_of_memory,
    start_late,
)

LIMIT = 90
CPU = torch.device("cpu")
LATE = {"slow": 0.02, "slower": 0.2, "stuck": 3.0}  # seconds


def hosts(mesh: meshkit.Mesh) -> dict[int, str]:
    """Put all ranks on one host."""
    return dict.fromkeys(mesh.peers().tolist(), "here")


def sweep_on_a_mesh(
    sizes: dict[str, int],
    operations: Sequence[str],
    names: Sequence[str],
    sizes_bytes: Sequence[int],
    fault: str = "",
    timeout: float = 20.0,
    warm_up: int = 1,
    alone: int | None = None,
) -> tuple[list[Measurement], list[Case]]:
    """Run a sweep on a mesh, with a fault on some ranks; return its rows and reported cases."""
    with (
        meshkit.build_mesh(sizes, groups=[n for n in names if " " in n] or None) as mesh,
        pytest.MonkeyPatch.context() as patch,
    ):
        reported: list[Case] = []
        stop = False

        def report(case: Case) -> None:
            nonlocal stop
            reported.append(case)
            if fault == "stops" and mesh.rank == 1:
                stop = len(reported) == 2
            if fault == "hangs" and mesh.rank == 1 and len(reported) == 2:
                time.sleep(6)
            if fault == "dies" and mesh.rank == 1 and len(reported) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        if fault == "wrong" and mesh.rank == 1:
            return_wrong_elements(patch, "all_gather", 3)
        if fault == "full" and mesh.rank == 1:
            run_out_of_memory(patch, "broadcast")
        if fault == "lacks":
            raise_not_supported(patch, "all_to_all")
        if fault in LATE and mesh.rank == 2:
            start_late(patch, "all_reduce", LATE[fault])
        todo = plan_cases(mesh.layout, operations, parse_targets(mesh.layout, names), sizes_bytes)
        terms = SweepOptions(warm_up, 4, timeout, alone)
        sweep = Sweep(mesh, CPU, hosts(mesh), terms, lambda: stop, report)
        return sweep.run(todo), reported


def swept(*given: object) -> list[Measurement]:
    """Return what a sweep found, which must be the same on all ranks."""
    by_rank = meshkit.spawn(sweep_on_a_mesh, 4, ({"dp": 2, "sp": 2}, *given), timeout=LIMIT)
    found, told = by_rank[0]
    assert all(rank == (found, told) for rank in by_rank)
    return found


def test_every_operation_alone_in_company_and_beside_another() -> None:
    found = swept(list(OPERATIONS), ["dp", "dp sp", "dp+sp"], [64, 4096])
    ways = [("dp", ALONE), ("dp", CONCURRENT)] * 2
    ways += [("dp sp", ALONE)] * 2 + [("dp+sp", OVERLAP)] * 2
    assert [(row.case.op, row.case.target.name, row.mode) for row in found] == [
        (op, *way) for op in OPERATIONS for way in ways
    ]
    assert {row.case.bytes for row in found} == {64, 4096}
    for row in found:
        assert (row.wrong, row.unsupported) == (0, None)
        assert row.timing is not None
        assert row.slowest is not None
        assert row.fastest is not None
        groups = 2 if row.case.target.name == "dp" else 1
        assert (row.calls, row.timing.calls) == (4, 4 * groups)
        assert 0 < row.timing.least <= row.timing.median <= row.timing.most < 5
        assert row.fastest.seconds <= row.slowest.seconds


def alone_and_together(alone: int | None = None) -> list[tuple[float, float]]:
    """Return when this rank was in each timed call over dp: alone, then with all groups."""
    inside: list[tuple[float, float]] = []
    with meshkit.build_mesh(dp=2, sp=2) as mesh:

        def begin(
            out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
        ) -> Works:
            began = time.monotonic()
            dist.all_reduce(out, group=group)
            time.sleep(0.03)
            inside.append((began, time.monotonic()))
            return []

        todo = plan_cases(mesh.layout, ["all_reduce"], parse_targets(mesh.layout, ["dp"]), [64])
        terms = SweepOptions(0, 2, 20.0, alone)
        sweep = Sweep(mesh, CPU, hosts(mesh), terms, lambda: False, lambda case: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(
                COLLECTIVES, "all_reduce", replace(COLLECTIVES["all_reduce"], begin=begin)
            )
            sweep.run(todo)
    return inside


def test_alone_groups_take_turns_and_in_company_they_do_not() -> None:
    by_rank = meshkit.spawn(alone_and_together, 4, timeout=LIMIT)
    assert {len(row) for row in by_rank} == {5}  # one checked, two alone, two in company

    def at(rank: int, calls: slice) -> tuple[float, float]:
        return by_rank[rank][calls][0][0], by_rank[rank][calls][-1][1]

    alone, company = slice(1, 3), slice(3, 5)
    for mine, other in ((0, 1), (2, 3), (0, 3)):  # members of sp=0 and of sp=1
        assert at(mine, alone)[1] <= at(other, alone)[0]
        assert at(mine, company)[0] < at(other, company)[1]
        assert at(other, company)[0] < at(mine, company)[1]


def test_of_many_groups_only_a_sample_takes_turns() -> None:
    by_rank = meshkit.spawn(alone_and_together, 4, (1,), timeout=LIMIT)
    # one call to check, two alone in the first group, two in company
    assert [len(row) for row in by_rank] == [5, 3, 5, 3]


def test_what_a_sample_found_is_that_of_its_groups() -> None:
    given = {"dp": 2, "sp": 2}, ["broadcast"], ["dp"], [64], "", 20.0, 1, 1
    by_rank = meshkit.spawn(sweep_on_a_mesh, 4, given, timeout=LIMIT)
    assert all(rank == by_rank[0] for rank in by_rank)
    alone, company = by_rank[0][0]
    assert [(row.groups, row.num_groups) for row in (alone, company)] == [(1, 2), (2, 2)]
    assert alone.timing is not None
    assert (alone.calls, alone.timing.calls) == (4, 4)
    assert alone.slowest == alone.fastest
    assert alone.slowest is not None
    assert alone.slowest.ranks == (0, 2)


def test_a_wrong_result_is_counted_on_every_rank() -> None:
    found = swept(["broadcast", "all_gather"], ["dp"], [64], "wrong")
    assert {(row.case.op, row.wrong) for row in found} == {("broadcast", 0), ("all_gather", 3)}


def test_what_the_backend_lacks_is_a_row_of_each_way() -> None:
    unsupported_reason, other = swept(["all_to_all"], ["dp"], [64], "lacks")
    assert (
        unsupported_reason.unsupported
        == other.unsupported
        == "Backend gloo does not support all_to_all"
    )
    assert [unsupported_reason.mode, other.mode] == [ALONE, CONCURRENT]
    assert unsupported_reason.timing is None


def test_a_slow_rank_makes_its_group_the_slowest() -> None:
    alone, company = swept(["all_reduce"], ["dp"], [64], "slow")
    for row in (alone, company):
        assert row.slowest is not None
        assert row.fastest is not None
        assert row.rank is not None
        assert row.slowest.ranks == (0, 2)
        assert row.slowest.seconds > 0.02 > row.fastest.seconds
        assert row.rank.rank in (0, 2)  # its peer waits for it


def test_a_slow_call_is_made_less_often() -> None:
    found = swept(["all_reduce"], ["dp"], [64], "slower", 2.0)
    # of two groups, one in 0.2 s: a quarter of 2 s is room for two calls, of four asked for
    assert [row.calls for row in found] == [2, 2]


def test_a_slow_call_is_warmed_up_less_often() -> None:
    # a hundred calls of 0.2 s would keep the other group at the barrier beyond its 2 s
    found = swept(["all_reduce"], ["dp"], [64], "slower", 2.0, 100)
    assert [row.calls for row in found] == [2, 2]


def test_where_one_is_asked_to_stop_all_leave_with_what_there_is() -> None:
    by_rank = meshkit.spawn(
        sweep_on_a_mesh,
        4,
        ({"dp": 2, "sp": 2}, ["broadcast"], ["dp", "sp"], [64], "stops"),
        timeout=60,
    )
    for found, told in by_rank:
        assert [(row.case.target.name, row.mode) for row in found] == [
            ("dp", ALONE),
            ("dp", CONCURRENT),
        ]
        assert [case.target.name for case in told] == ["dp", "sp"]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "limit"), [("hangs", 1.0), ("dies", 20.0)])
def test_a_rank_that_goes_is_named_in_time(fault: str, limit: float) -> None:
    given = {"dp": 2, "sp": 2}, ["broadcast"], ["dp", "sp"], [64], fault, limit
    with pytest.raises(SpawnError) as caught:
        meshkit.spawn(sweep_on_a_mesh, 4, given, timeout=LIMIT)
    told = [str(error) for rank, error in caught.value.errors.items() if rank != 1]
    assert told
    assert all("rank 1 (dp=0 sp=1)" in text for text in told)
    assert all(text.startswith(f"mesh.guard(timeout={limit:g}): ") for text in told)
    during = "\n  It was one of the collectives that measure broadcast over sp, 64 bytes.\n  Fix: "
    assert all(during in text for text in told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "innocent"), [("dp", "in all_reduce over dp, "), ("dp+sp", "in wait over ")]
)
def test_of_a_rank_that_hangs_the_others_say_what_they_wait_in(target: str, innocent: str) -> None:
    given = {"dp": 2, "sp": 2}, ["all_reduce"], [target], [64], "stuck", 1.0
    with pytest.raises(SpawnError) as caught:
        meshkit.spawn(sweep_on_a_mesh, 4, given, timeout=LIMIT)
    text = str(caught.value.errors[0])
    assert innocent in text
    assert "rank 2 (dp=1 sp=0) has begun " in text
    assert text.count("in no collective, faulty_calls.py:") == 1
    assert f" that measure all_reduce over {target}, 64 bytes.\n" in text


def test_an_out_of_memory_error_proposes_smaller_sizes() -> None:
    given = {"dp": 2, "sp": 2}, ["broadcast"], ["dp"], [64], "full"
    with pytest.raises(SpawnError) as caught:
        meshkit.spawn(sweep_on_a_mesh, 4, given, timeout=LIMIT)
    text = str(caught.value.errors[1])
    first, *_, last = text.splitlines()
    assert first == "broadcast over dp, 64 bytes on rank 1: the arrays do not fit into memory."
    assert "can't allocate memory: you tried to allocate 4611686018427387904 bytes" in text
    assert last == "  Fix: --sizes 16."
    assert " left with MeshkitError: broadcast over dp, 64 " in str(caught.value.errors[0])


def asking(others: Sequence[dict[str, Any]]) -> list[str]:
    """Return the error of each request in which rank 1 differs; nothing may be measured."""
    layout = meshkit.Layout(dp=2)
    targets = parse_targets(layout, ["dp"])
    usual = Request(
        {"dp": 2}, None, ("broadcast",), targets, (64,), SweepOptions(1, 2, 20.0), "cpu"
    )
    never = replace(COLLECTIVES["broadcast"], begin=lambda *_: sys.exit("it was measured"))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COLLECTIVES, "broadcast", never)
        for other in others:
            try:
                run_benchmark(
                    replace(usual, **other) if meshkit.detect().rank == 1 else usual, layout
                )
            except meshkit.DisagreementError as error:
                found.append(str(error))
    return found


def test_different_measurements_are_reported_before_the_first() -> None:
    others = [
        ("--ops", {"operations": ("all_reduce",)}, "broadcast", "all_reduce"),
        ("--sizes", {"sizes": (64, 256)}, "64", "64,256"),
        ("--iters", {"options": SweepOptions(1, 5, 20.0)}, "2", "5"),
        ("--warm-up", {"options": SweepOptions(0, 2, 20.0)}, "1", "0"),
        ("--alone", {"options": SweepOptions(1, 2, 20.0, 3)}, "all", "3"),
    ]
    found, same = meshkit.spawn(asking, 2, ([row[1] for row in others],), timeout=LIMIT)
    assert found == same
    for text, (option, _, usual, other) in zip(found, others, strict=True):
        first, rank0, rank1, fix = text.splitlines()
        assert first == "ranks disagree about what to measure; nothing was measured."
        assert rank0 == f"  rank 0:  {option}={usual}"
        assert rank1.startswith("  rank 1 (")
        assert rank1.endswith(f"):  {option}={other}")
        assert fix == f"  Fix: pass equal {option} on every rank."


def test_axes_that_need_the_same_groups_are_compared_too() -> None:
    targets = parse_targets(Layout(dp=2, sp=2), ["dp+sp", "dp"])
    request = Request({}, None, ("broadcast",), targets, (4,), SweepOptions(0, 2, 1.0))
    assert request.fields["--axes"] == "dp+sp,dp"


def hosts_of_ranks() -> list[str]:
    """Return the host of each rank when each rank has a host name of its own."""
    rank = meshkit.detect().rank
    targets = parse_targets(meshkit.Layout(dp=4), ["dp"])
    request = Request({"dp": 4}, None, (), targets, (64,), SweepOptions(1, 2, 20.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: f"host-{rank}")
        patch.setattr(process, "machine_id", lambda: f"host-{rank}")
        meshkit.init(device="cpu")
        return agree_on_hosts(request)


def test_every_rank_knows_the_host_of_each() -> None:
    found = meshkit.spawn(hosts_of_ranks, 4, timeout=LIMIT)
    assert found == [[f"host-{rank}" for rank in range(4)]] * 4
