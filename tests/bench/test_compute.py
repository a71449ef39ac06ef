"""Collectives beside a matrix product, on real ranks: how much of them is hidden."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.bench import calls
from meshkit.bench.compute import SECONDS, MatrixProduct, choose_product
from meshkit.bench.measure import Sweep, SweepOptions
from meshkit.bench.results import MIN_CALLS, Beside, parse_targets, plan_cases
from meshkit.launch.log import Progress

CPU = torch.device("cpu")
EACH = 0.2  # seconds of a collective, and of a product


class Clock:
    """The clock of a rank, which only collectives and products move."""

    now = 0.0

    def perf_counter(self) -> float:
        """Return the seconds."""
        return self.now


class LateWork(dist.Work):
    """A collective that is over some time after it has begun."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.end = clock, clock.now + EACH

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until then."""
        self.clock.now = max(self.clock.now, self.end)
        return True


def measure_late_calls(is_async: bool) -> list[Beside]:
    """Measure a product beside collectives that run by themselves or do not."""
    clock = Clock()
    with meshkit.build_mesh(dp=2, sp=2) as mesh, pytest.MonkeyPatch.context() as patch:
        begin = calls.begin_collective

        def begin_late(op: str, *given: object) -> calls.Works:
            for work in begin(op, *given):  # type: ignore[arg-type]
                if work is not None:
                    work.wait()
            late = LateWork(clock)
            if not is_async:
                late.wait()
            return [late]

        def compute(product: MatrixProduct) -> None:
            clock.now += EACH

        patch.setattr(calls, "time", clock)
        patch.setattr(calls, "begin_collective", begin_late)
        patch.setattr(MatrixProduct, "__call__", compute)
        targets = parse_targets(mesh.layout, ["dp", "dp+sp"])
        cases = plan_cases(mesh.layout, ["all_reduce"], targets, [64, 256])
        options = SweepOptions(0, 2, 20.0, 1, overlap_compute=True)
        sweep = Sweep(mesh, CPU, options, Progress("", None))
        sweep.run(cases)
        return sweep.beside


@pytest.mark.parametrize("is_async", [True, False])
def test_only_what_runs_by_itself_is_hidden(is_async: bool) -> None:
    by_rank = meshkit.spawn(measure_late_calls, 4, (is_async,), timeout=120)
    assert all(rows == by_rank[0] for rows in by_rank)
    (row,) = by_rank[0]  # at the largest size, and not of two axes at once
    assert (row.case.target.name, row.case.bytes) == ("dp", 256)
    seconds = EACH, EACH, EACH if is_async else 2 * EACH
    assert (row.collective, row.product, row.both) == pytest.approx(seconds)
    assert row.hidden == pytest.approx(float(is_async), abs=1e-6)


def measure_products() -> tuple[list[Beside], list[str]]:
    """Measure real collectives beside real products, of two operations; with the progress."""
    shown: list[str] = []
    with meshkit.build_mesh(dp=2) as mesh, pytest.MonkeyPatch.context() as patch:
        targets = parse_targets(mesh.layout, ["dp"])
        cases = plan_cases(mesh.layout, ["all_reduce", "send_recv"], targets, [2**20])
        progress = Progress("", None)
        patch.setattr(progress, "show", shown.append)
        sweep = Sweep(mesh, CPU, SweepOptions(1, 4, 20.0, overlap_compute=True), progress)
        sweep.run(cases)
        return sweep.beside, shown


def test_each_operation_is_measured_beside_a_real_product() -> None:
    (rows, shown), others = meshkit.spawn(measure_products, 2, timeout=120)
    assert (rows, shown) == others
    operations = ["all_reduce", "send_recv"]
    assert [row.case.op for row in rows] == operations
    cases = [f"{op} over dp, 1048576 bytes beside a matrix product" for op in operations]
    assert [re.sub(r", \d+ s left$", "", state) for state in shown[-2:]] == cases
    assert shown[-2] == f"{cases[0]}, {len(cases) * SECONDS:.0f} s left"
    assert shown[-1] != cases[1]
    assert min(min(row.collective, row.product, row.both) for row in rows) > 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return a clock that only products move: by 0.05 s for a side of 128."""
    clock = Clock()

    def compute(product: MatrixProduct) -> None:
        clock.now += product.repeats * 0.05 * (product.side / 128) ** 3

    monkeypatch.setattr(calls, "time", clock)
    monkeypatch.setattr(MatrixProduct, "__call__", compute)
    return clock


def one_rank(longest_wait: float, all_gather: Any = lambda row: np.array([row])) -> Sweep:
    """Return the part of a sweep of one rank that a product needs."""
    return cast(
        Sweep, SimpleNamespace(device=CPU, longest_wait=longest_wait, all_gather=all_gather)
    )


@pytest.mark.usefixtures("clock")
def test_the_chosen_product_takes_as_long_as_the_collective() -> None:
    product = choose_product(one_rank(15.0), 0.15)  # 64 takes 0.006 s, less than a quarter
    assert (product.side, product.repeats) == (128, 3)
    assert choose_product(one_rank(15.0), 1e-4).repeats == 1


@pytest.mark.parametrize("longest_wait", [0.5, 1.0, 5.0, 60.0])
def test_no_rank_computes_for_longer_than_the_others_wait(
    clock: Clock, longest_wait: float
) -> None:
    exchanges = [clock.now]

    def all_gather(row: list[float]) -> np.ndarray:
        exchanges.append(clock.now)
        return np.array([row])

    product = choose_product(one_rank(longest_wait, all_gather), 1000.0)
    assert max(np.diff(exchanges)) <= longest_wait
    began = clock.now
    product()
    assert (clock.now - began) * (1 + MIN_CALLS) <= 1.1 * longest_wait
