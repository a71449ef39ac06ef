"""Lines that were saved, read again; and files that hold none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshkit import SpecError
from meshkit.core.call import Call
from meshkit.core.measured_json import as_fields
from meshkit.core.measured_read import read_fits
from tests.core.reports import REPORT

CALL = Call("f")
SAVED = json.dumps(as_fields(REPORT))


def test_what_was_saved_is_read_again() -> None:
    assert read_fits(CALL, json.loads(SAVED)) == REPORT.fits
    assert len(REPORT.fits) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("op", "reduce"),
        ("op", None),
        ("op", ["all_reduce"]),
        ("target", 3),
        ("mode", None),
        ("ranks", 1),
        ("ranks", "many"),
        ("alpha", -1e-9),
        ("alpha", "1"),
        ("beta", float("nan")),
        ("beta", None),
        ("sizes", [1024]),
        ("sizes", [1024, 1024]),
        ("sizes", [0, 1024]),
        ("sizes", 1024),
        ("residuals", [0.1]),
        ("residuals", [0.1, float("inf")]),
        ("residuals", ["x", 0.1]),
        ("mesh", {"dp": 0}),
        ("mesh", {}),
        ("mesh", [["dp", 2]]),
        ("ranks", "4"),
        ("ranks", 2.0),
        ("ranks", 2.5),
        ("ranks", True),
        ("ranks", 3),
        ("alpha", True),
        ("beta", 1e308),
        ("beta", 10**400),
        ("beta", 1e25),
        ("residuals", "12"),
        ("residuals", [True, 0.1]),
        ("residuals", [1e308, 0.1]),
        ("sizes", [1024.5, 2048]),
        ("sizes", [1024.0, 2048]),
        ("sizes", ["1024", 2048]),
        ("sizes", [1024, 10**400]),
        ("mesh", {"dp": 2.7, "sp": 2}),
        ("mesh", {"dp": "2", "sp": 2}),
        ("mesh", {"dp": 2, "sp": 2**63}),
        ("mesh", {"dp": 2, "sp; rm": 2}),
        ("mesh", {"dp": 2, "s p": 2}),
        ("mesh", {"dp": 2, "sp\x1b": 2}),
        ("mesh", {"sp": 2}),
        ("target", ""),
        ("target", "dp "),
        ("target", "dp dp"),
        ("target", "zz"),
        ("mode", "alone; ls"),
    ],
)
def test_what_is_no_line(name: str, value: object) -> None:
    said: dict[str, Any] = json.loads(SAVED)
    assert read_fits(CALL, said)
    said["fits"][1][name] = value
    with pytest.raises(SpecError, match=r"^f\(\): the file holds no line through measured times"):
        read_fits(CALL, said)


@pytest.mark.parametrize("said", [{}, {"fits": []}, {"fits": None}, {"fits": [3]}, {"fits": [{}]}])
def test_files_without_lines(said: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="holds no line"):
        read_fits(CALL, said)


def test_times_are_above_zero_and_numbers_may_be_whole() -> None:
    said: dict[str, Any] = json.loads(SAVED)
    said["fits"][1].update(alpha=0, beta=0)
    with pytest.raises(SpecError, match="holds no line"):
        read_fits(CALL, said)
    said["fits"][1].update(alpha=5e-324)  # a bandwidth that no float holds
    with pytest.raises(SpecError, match="holds no line"):
        read_fits(CALL, said)
    said["fits"][1].update(alpha=1)
    fit = read_fits(CALL, said)[1]
    assert (fit.seconds(1024), type(fit.alpha)) == (1.0, float)
