"""Collectives beside a matrix product, on real ranks: how much of them is hidden."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.bench import calls
from meshkit.bench.compute import MatrixProduct, choose_product
from meshkit.bench.measure import Sweep, SweepOptions
from meshkit.bench.results import Beside, parse_targets, plan_cases
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


def measure_products() -> list[Beside]:
    """Measure real collectives beside real products, of two operations."""
    with meshkit.build_mesh(dp=2) as mesh:
        targets = parse_targets(mesh.layout, ["dp"])
        cases = plan_cases(mesh.layout, ["all_reduce", "send_recv"], targets, [2**20])
        sweep = Sweep(mesh, CPU, SweepOptions(1, 4, 20.0, overlap_compute=True), Progress("", None))
        sweep.run(cases)
        return sweep.beside


def test_each_operation_is_measured_beside_a_real_product() -> None:
    rows, others = meshkit.spawn(measure_products, 2, timeout=120)
    assert rows == others
    assert [row.case.op for row in rows] == ["all_reduce", "send_recv"]
    assert min(min(row.collective, row.product, row.both) for row in rows) > 0


def test_the_chosen_product_takes_as_long_as_the_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()

    def compute(product: MatrixProduct) -> None:
        clock.now += product.repeats * 0.05 * (product.side / 128) ** 3

    monkeypatch.setattr(calls, "time", clock)
    monkeypatch.setattr(MatrixProduct, "__call__", compute)
    one_rank = cast(Sweep, SimpleNamespace(device=CPU, all_gather=lambda row: np.array([row])))
    product = choose_product(one_rank, 0.15)  # 64 takes 0.006 s, less than a quarter
    assert (product.side, product.repeats) == (128, 3)
    assert choose_product(one_rank, 1e-4).repeats == 1
