"""The benchmark of real bugs: its rows on two of them, and its table."""

from __future__ import annotations

import pytest

from benchmarks import numerics


@pytest.mark.slow
def test_the_rows_and_the_table_of_two_bugs() -> None:
    rows = numerics.run(quick=True)
    assert [row.ours for row in rows[:3]] == [2, 2, 2]
    assert [row.met for row in rows if row.goal] == [True] * 5
    result = numerics.examine(numerics.MINIATURES[0])
    last = numerics.table([result]).splitlines()[-1]
    assert last.startswith("| router | [pytorch/torchtitan#2387](https://github.com/pytorch/")
    assert "| grad gate | missing sum | tp |" in last
