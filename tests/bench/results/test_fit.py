"""The line through measured times: by other derivations, and what it refuses to say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.bench.results.fit import fit_line, fit_measurements
from meshkit.bench.results.measurement import Case, Measurement
from meshkit.bench.results.targets import ALONE, OVERLAP, Target

quick = settings(deadline=None, max_examples=60, database=None)
seconds = st.floats(1e-6, 10.0)
DP, BOTH = Target((("dp",),)), Target((("dp",), ("sp",)))


def loss(alpha: float, beta: float, sizes: list[int], took: list[float]) -> float:
    return sum(((alpha + beta * s - t) / t) ** 2 for s, t in zip(sizes, took, strict=True))


@quick
@given(st.floats(1e-6, 1e-1), st.floats(1e-12, 1e-6))
def test_a_line_is_found_again(alpha: float, beta: float) -> None:
    sizes = [2**10, 2**14, 2**18, 2**26]
    found = fit_line(sizes, [alpha + beta * size for size in sizes])
    assert found == pytest.approx((alpha, beta), rel=1e-6)


@quick
@given(st.lists(seconds, min_size=2, max_size=6))
def test_no_other_line_leaves_less(took: list[float]) -> None:
    sizes = [1000 * 4**i for i in range(len(took))]
    alpha, beta = fit_line(sizes, took)
    assert min(alpha, beta) >= 0
    least = loss(alpha, beta, sizes, took)
    scale = max(took)
    steps = [0.0, *(sign * 10.0**-power for power in range(6) for sign in (1, -1))]
    others = [
        (alpha + a * scale, beta + b * scale / size)
        for a in steps
        for b in steps
        for size in (sizes[0], sizes[-1])
    ]
    assert all(
        loss(a, b, sizes, took) >= least * (1 - 1e-9) - 1e-12
        for a, b in others
        if a >= 0 and b >= 0
    )


@quick
@given(st.lists(seconds, min_size=3, max_size=6))
def test_a_line_inside_the_bounds_solves_the_normal_equations(took: list[float]) -> None:
    # Cramer's rule on sum(w), sum(wS), sum(wS^2) with w = 1/t^2: another way than lstsq
    sizes = [1000.0 * 2**i for i in range(len(took))]
    w = [t**-2 for t in took]
    a, b, c = (sum(x * s**k for x, s in zip(w, sizes, strict=True)) for k in (0, 1, 2))
    p, q = (sum(s**k / t for s, t in zip(sizes, took, strict=True)) for k in (0, 1))
    alpha, beta = (p * c - q * b) / (a * c - b * b), (a * q - b * p) / (a * c - b * b)
    if alpha > 0 and beta > 0:
        assert fit_line(sizes, took) == pytest.approx((alpha, beta), rel=1e-4, abs=1e-12)


def test_times_that_fall_are_a_constant_and_those_without_a_start_are_a_slope() -> None:
    alpha, beta = fit_line([1000, 2000], [3.0, 1.0])
    # sum(1/t) / sum(1/t^2)
    assert (alpha, beta) == pytest.approx((1.2, 0.0))
    alpha, beta = fit_line([1000, 2000], [1.0, 4.0])
    # sum(S/t) / sum(S^2/t^2)
    assert (alpha, beta) == pytest.approx((0.0, 1500 / 1_250_000))


def found(op: str, target: Target, mode: str, size: int, took: float) -> Measurement:
    sizes = (4, 2) if len(target.groups) > 1 else (4,)
    return Measurement(Case(op, target, size), mode, sizes, median=took)


def test_a_fit_for_each_operation_target_and_way() -> None:
    rows = [
        found("broadcast", DP, ALONE, 3000, 5.0),
        found("broadcast", DP, ALONE, 1000, 3.0),
        found("broadcast", DP, "concurrent", 1000, 1.0),  # one size: no fit_line
        found("all_gather", DP, ALONE, 1000, 1.0),
        found("all_gather", DP, ALONE, 3000, 2.0),
        found("all_gather", DP, ALONE, 5000, 1.5),
        found("all_gather", BOTH, OVERLAP, 1000, 1.0),  # two at once: no size of one
        found("all_gather", BOTH, OVERLAP, 2000, 1.0),
        Measurement(Case("broadcast", DP, 9000), ALONE, (4,), unsupported="no"),
    ]
    first, second = fit_measurements(rows)
    assert (first.op, first.target, first.mode, first.ranks) == ("broadcast", "dp", "alone", 4)
    assert (first.alpha, first.beta) == pytest.approx((2.0, 0.001))
    assert (second.op, second.target) == ("all_gather", "dp")
