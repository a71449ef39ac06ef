"""Scale: the figures of many ranks, and their growth."""

import pytest

from benchmarks.harness import single
from benchmarks.scale import check_in, growth_row


@pytest.mark.parametrize("power", [-1.0, 0.5, 2.0])
def test_growth_is_the_power_of_a_power_law(power: float) -> None:
    rows = [single("a", n, "s", [3 * n**power]) for n in (8, 64, 512)]
    row = growth_row("a", [*rows, single("b", 10, "s", [7.0])])
    assert (row.what, row.scale, str(row.goal)) == ("a, growth", 512, "ours <= 1.2")
    assert row.ours == pytest.approx(power)


def test_every_rank_checks_in_once_at_a_real_store_with_four_operations() -> None:
    done = check_in(64)
    # the last rank looks for a conflict and writes the decision where the others read it
    assert done.operations == 4 * 64 + 1
    assert done.agreed
    assert 0 < done.store_seconds < done.seconds
