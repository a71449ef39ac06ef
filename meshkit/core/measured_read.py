"""The lines of a run, read again from what ``core.measured_json`` has written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

from .call import Call
from .errors import SpecError, told
from .fit import Fit
from .operations import OPERATIONS


def read_fits(call: Call, said: Mapping[str, Any]) -> tuple[Fit, ...]:
    """The lines of a saved run. Pure.

    Args:
        call: what an error quotes.
        said: what the JSON of ``meshkit bench --json`` holds.

    Raises:
        SpecError: where it holds no line, or something that is none.
    """
    try:
        found = [_fit(one) for one in said["fits"]]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        found = []
    fits = tuple(fit for fit in found if fit is not None)
    if not fits or len(fits) < len(found):
        line = f"{call}: the file holds no line through measured times."
        fix = "meshkit bench dp=2 -n 2 --sizes 1K:1M --json, say, which measures two sizes or more."
        raise SpecError(told(line, fix=fix))
    return fits


def _fit(said: Mapping[str, Any]) -> Fit | None:
    """One line; None, or what comes of a value of another type, where it is none."""
    known = {field.name: said[field.name] for field in fields(Fit)}
    known["residuals"] = tuple(map(float, known["residuals"]))
    sizes = tuple(map(int, known["sizes"]))
    terms = known["alpha"] + 0.0, known["beta"] + 0.0
    mesh = {str(axis): int(size) for axis, size in known["mesh"].items()}
    rising = len(sizes) > 1 and sizes[0] > 0 and all(a < b for a, b in pairwise(sizes))
    finite = all(map(math.isfinite, (*terms, *known["residuals"]))) and min(terms) >= 0
    named = known["op"] in OPERATIONS and all(isinstance(known[n], str) for n in ("target", "mode"))
    many = int(known["ranks"]) > 1 and min(mesh.values()) > 0
    if not (rising and finite and named and many) or len(sizes) != len(known["residuals"]):
        return None
    return Fit(**{**known, "sizes": sizes, "mesh": mesh})
