"""What a line says of a size, as data and as text."""

from __future__ import annotations

import pytest

from meshkit import SpecError
from meshkit.core.fit import Fit
from meshkit.core.prediction import Prediction, prediction_table

MESH = {"dp": 4, "sp": 2}
DP = Fit("all_reduce", "dp", "alone", 4, 1e-3, 1e-9, (1000, 4_000_000), (0.1, -0.25), MESH)
BOTH = Fit("broadcast", "dp sp", "alone", 8, 2e-3, 1e-9, (1000, 4_000_000), (0.0, 0.004), MESH)


def test_by_hand() -> None:
    one = Prediction(DP, 3_000_000)
    assert one.seconds == pytest.approx(4e-3)
    told = one.as_dict()
    assert told == {
        "op": "all_reduce",
        "axes": "dp",
        "mode": "alone",
        "ranks": 4,
        "size": 3_000_000,
        "time": pytest.approx(4000),
        "alg_bw": pytest.approx(0.75),
        "bus_bw": pytest.approx(0.75 * 1.5),
        "within": 0.25,
    }
    assert Prediction(BOTH, 1000).busbw == pytest.approx(1000 / 2.001e-3 / 1e9)


def test_the_table_to_the_letter() -> None:
    rows = [Prediction(fit, size) for fit in (DP, BOTH) for size in (1000, 3_000_000)]
    assert (
        prediction_table(rows, ascii=True)
        == """\
operation   over   mode   n    bytes      us   busbw  within
----------  -----  -----  -  -------  ------  ------  ------
all_reduce  dp     alone  4     1000  1001.0  0.0015  25 %
all_reduce  dp     alone  4  3000000  4000.0  1.1250  25 %
broadcast   dp sp  alone  8     1000  2001.0  0.0005  0 %
broadcast   dp sp  alone  8  3000000  5000.0  0.6000  0 %"""
    )


def test_outside_it_says_nothing() -> None:
    for size in (999, 4_000_001):
        with pytest.raises(SpecError, match="was measured from 1000 to 4000000 bytes"):
            _ = Prediction(DP, size).seconds
