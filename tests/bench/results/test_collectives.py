"""Bandwidths and sizes: by hand, and by counting what goes over a wire."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.bench.results.collectives import (
    OPERATIONS,
    busbw_factor,
    divisible_size,
    sweep_sizes,
)

quick = settings(deadline=None, max_examples=60, database=None)
RANKS = (1, 2, 3, 4, 5, 8, 64)

# --- busbw factors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),  # 2 * 1/2
        ("all_reduce", 4, 1.5),  # 2 * 3/4
        ("all_reduce", 8, 1.75),  # 2 * 7/8
        ("all_gather", 2, 0.5),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("all_to_all", 1, 0.0),
        ("all_reduce", 1, 0.0),
        ("broadcast", 8, 1.0),
        ("send_recv", 2, 1.0),
        ("send_recv", 1, 0.0),
    ],
)
def test_busbw_factor_by_hand(op: str, ranks: int, factor: float) -> None:
    assert busbw_factor(op, ranks) == factor


def parts_gathered(ranks: int) -> list[int]:
    """How many parts each rank sends in a ring until all have all: what came last goes on."""
    have, last, sent = [{r} for r in range(ranks)], list(range(ranks)), [0] * ranks
    while any(len(parts) < ranks for parts in have):
        last = [last[r - 1] for r in range(ranks)]
        sent = [count + 1 for count in sent]
        have = [parts | {part} for parts, part in zip(have, last, strict=True)]
    return sent


def parts_reduced(ranks: int) -> list[int]:
    """How many parts each rank sends until each part has met all: part p ends on rank p."""
    sent = [0] * ranks
    for part in range(ranks):
        at, summed = (part + 1) % ranks, {(part + 1) % ranks}
        while len(summed) < ranks:
            sent[at] += 1
            at = (at + 1) % ranks
            summed |= {at}
        assert at == part
    return sent


def parts_exchanged(ranks: int) -> list[int]:
    return [sum(other != rank for other in range(ranks)) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", RANKS)
def test_busbw_factor_counts_what_leaves_a_rank(ranks: int) -> None:
    # busbw * t is what each rank puts on its wire; a part is S / n, so factor = parts sent / n
    gathered, reduced = parts_gathered(ranks), parts_reduced(ranks)
    sent = {
        "all_gather": gathered,
        "reduce_scatter": reduced,
        "all_reduce": [a + b for a, b in zip(gathered, reduced, strict=True)],
        "all_to_all": parts_exchanged(ranks),
    }
    assert sent.keys() == {op for op, known in OPERATIONS.items() if known.ring_passes}
    for op, parts in sent.items():
        assert {float(Fraction(count, ranks)) for count in parts} == {busbw_factor(op, ranks)}


# --- sizes -----------------------------------------------------------------------------------


def test_sizes_go_up_by_the_factor_and_end_at_or_below_the_most() -> None:
    assert sweep_sizes(1024, 4096, 2) == (1024, 2048, 4096)
    assert sweep_sizes(1024, 4095, 2) == (1024, 2048)
    assert sweep_sizes(8, 8, 2) == (8,)
    assert sweep_sizes(1, 2**40, 2) == tuple(2**i for i in range(41))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("size", [1, 4, 1000, 1024, 2**20 + 3])
def test_a_fitted_size_is_the_nearest_below_that_all_ranks_can_share(size: int, ranks: int) -> None:
    fits = [s for s in range(4 * ranks, size + 1, 4) if s // 4 % ranks == 0] or [4 * ranks]
    assert divisible_size(size, ranks) == fits[-1]


@quick
@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(2, 64))
def test_sizes_are_a_geometric_series_that_cannot_go_on(least: int, more: int, factor: int) -> None:
    most = least + more
    sizes = sweep_sizes(least, most, factor)
    assert sizes[0] == least
    assert all(b == a * factor for a, b in pairwise(sizes))
    assert sizes[-1] <= most < sizes[-1] * factor


@pytest.mark.parametrize("arguments", [(0, 8, 2), (9, 8, 2), (8, 16, 1), (8, 2**41, 2)])
def test_sizes_that_are_none_or_never_end(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="there are no sizes from"):
        sweep_sizes(*arguments)


@pytest.mark.parametrize(
    ("op", "passes", "source", "output", "counted"),
    [
        ("all_reduce", 2, 24, 24, 24),
        ("all_gather", 1, 8, 24, 8),
        ("reduce_scatter", 1, 24, 8, 8),
        ("all_to_all", 1, 24, 24, 8),
        ("broadcast", 0, 24, 24, 24),
        ("send_recv", 0, 24, 24, 24),
    ],
)
def test_24_items_on_3_ranks(op: str, passes: int, source: int, output: int, counted: int) -> None:
    known = OPERATIONS[op]
    assert known.ring_passes == passes
    assert (known.source_items(24, 3), known.output_items(24, 3)) == (source, output)
    assert known.count(24, 3) == counted
