"""The lines of a run, read again from what ``core.measured_json`` has written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

from .axes import MAX_RANKS, check_names
from .bandwidth import MOST as MOST_BYTES
from .call import Call
from .errors import SpecError, told
from .fit import Fit
from .integers import integer
from .links import LEAST, MOST
from .measurement import ALONE, CONCURRENT
from .operations import OPERATIONS


def read_fits(call: Call, said: Mapping[str, Any]) -> tuple[Fit, ...]:
    """The lines of a saved run. Pure.

    Nothing is rounded or read as something else: a file may have been edited.

    Args:
        call: what an error quotes; it names the file.
        said: what the JSON of ``meshkit bench --json`` holds.

    Raises:
        SpecError: where it holds no line, or something that is none.
    """
    try:
        found = [_fit(call, one) for one in said["fits"]]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        found = []
    fits = tuple(fit for fit in found if fit is not None)
    if not fits or len(fits) < len(found):
        line = f"{call}: the file holds no line through measured times."
        fix = "meshkit bench dp=2 -n 2 --sizes 1K:1M --json, say, which measures two sizes or more."
        raise SpecError(told(line, fix=fix))
    return fits


def _fit(call: Call, said: Mapping[str, Any]) -> Fit | None:
    """One line; None, or what comes of a value of another type, where it is none."""
    known = {field.name: said[field.name] for field in fields(Fit)}
    if not all(isinstance(known[name], list | tuple) for name in ("sizes", "residuals")):
        return None
    sizes, mesh = tuple(map(_integer, known["sizes"])), _mesh(call, known["mesh"])
    terms = {name: _number(known[name], 0) for name in ("alpha", "beta")}
    residuals = tuple(_number(one, -MOST) for one in known["residuals"])
    finite = all(map(math.isfinite, residuals))
    if not finite or not _is_drawn(sizes, *terms.values()) or len(residuals) != len(sizes):
        return None
    if known["op"] not in OPERATIONS or known["mode"] not in (ALONE, CONCURRENT):
        return None
    axes = known["target"].split()
    spans = known["target"] == " ".join(axes) and len({*axes}) == len(axes) > 0
    ranks = _integer(known["ranks"])
    if not spans or not 1 < ranks == math.prod(mesh[axis] for axis in axes):
        return None
    exact = {"ranks": ranks, "sizes": sizes, "mesh": mesh, "residuals": residuals}
    return Fit(**{**known, **terms, **exact})


def _is_drawn(sizes: tuple[int, ...], alpha: float, beta: float) -> bool:
    """Whether sizes rise, and times between them are above zero and finite in any unit."""
    rising = len(sizes) > 1 and all(a < b for a, b in pairwise((0, *sizes)))
    if not rising or sizes[-1] > MOST_BYTES:
        return False
    return alpha + beta * sizes[0] >= LEAST and alpha + beta * sizes[-1] <= MOST


def _mesh(call: Call, said: Mapping[str, object]) -> dict[str, int]:
    """The sizes of a mesh, whose names may stand in a command; {} where it is none."""
    check_names(call, said.keys())
    mesh = {axis: _integer(size) for axis, size in said.items()}
    return mesh if min(mesh.values()) > 0 and math.prod(mesh.values()) <= MAX_RANKS else {}


def _integer(said: object) -> int:
    """An integer; 0, which no size is, for anything else."""
    found = integer(said)
    return 0 if found is None else found


def _number(said: object, least: float) -> float:
    """A number that is no bool, from the least on and finite in any unit; nan for anything else."""
    number = isinstance(said, int | float) and not isinstance(said, bool)
    return float(said) if number and least <= said <= MOST else math.nan  # type: ignore[arg-type,operator]
