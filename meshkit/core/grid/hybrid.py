"""Axes that are partly within nodes and partly across them, as in the hybrid meshes of JAX.

::

    within={"dp": 2, "tp": 2}, across={"dp": 2}          tp=0  tp=1
                                                   dp=0    0     1    node 0
    dp = 2 across * 2 within = 4                   dp=1    2     3
    coordinate = outer * 2 + inner                 dp=2    4     5    node 1
                                                   dp=3    6     7
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from ..errors import CALL, SpecError
from ..text import article
from ..validate import parse_integer
from .axis_names import check_names
from .layout import Layout
from .sizes import infer_sizes, order_axes
from .strides import permuted_positions


def hybrid_layout(
    num_ranks: int,
    within: Mapping[str, int] | None,
    across: Mapping[str, int] | None,
    order: str | Iterable[str] | None,
) -> Layout:
    """Return the layout of sizes within and across nodes; see :func:`meshkit.factor_world`."""
    inner, outer = _parse_part("within", within), _parse_part("across", across)
    names = order_axes(dict.fromkeys((*outer, *inner), 1), order)
    if "dp" in names and "dp" not in {*outer, *inner}:
        outer["dp"] = -1
    parts = {f"across {name}": outer[name] for name in names if name in outer}
    parts |= {f"within {name}": inner[name] for name in names if name in inner}
    _check_one_open(parts)
    sizes = infer_sizes(parts, num_ranks, f"world_size = {num_ranks}")
    outer_sizes, inner_sizes = (
        [sizes.get(f"{part} {name}", 1) for name in names] for part in ("across", "within")
    )
    total = {n: a * b for n, a, b in zip(names, outer_sizes, inner_sizes, strict=True)}
    ranks = np.empty(num_ranks, dtype=np.int64)
    chain = tuple(itertools.chain(enumerate(outer_sizes), enumerate(inner_sizes)))
    ranks[permuted_positions(tuple(total.values()), chain)] = np.arange(num_ranks)
    return Layout(ranks=ranks, **total)


def check_no_plain_sizes(sizes: Mapping[str, object], across: Mapping[str, int] | None) -> None:
    """Check that no sizes are given by keyword in addition to those within and across nodes."""
    if sizes:
        line = f"{CALL} gives {', '.join(sizes)} in addition to within and across."
        known = across if isinstance(across, Mapping) else {}
        fix = f"across={ {**known, **sizes}!r}; or use within for sizes on one node."
        raise SpecError(line, fix=fix, sizes=dict(sizes))


def _parse_part(option: str, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """Return the sizes of one option as plain ints, each 1 or more, or -1."""
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        line = f"{option} is {article(type(sizes).__name__)}."
        raise SpecError(line, fix=f"a dict from axis to size, such as {option}={{'dp': 2}}.")
    if sizes:
        check_names(sizes)
    for name, size in sizes.items():
        number = parse_integer(size)
        if number is None or (number < 1 and number != -1):
            line = f"the size of {name} {option} nodes is {size!r}."
            raise SpecError(line, fix="an int of 1 or more, or -1 for the one to be inferred.")
    return {name: int(size) for name, size in sizes.items()}


def _check_one_open(parts: Mapping[str, int]) -> None:
    """Check that at most one size is to be inferred."""
    unknown = [part for part, size in parts.items() if size == -1]
    if len(unknown) > 1:
        line = f"{CALL} leaves {' and '.join(unknown)} open."
        hint = "Only one size can be inferred; dp is inferred across nodes if it is left out."
        raise SpecError(line, hint, fix=f"a size for {' and '.join(unknown[1:])}.")
