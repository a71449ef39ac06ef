"""The law of values: whatever moves or combines is tried with every kind of tensor.

Each operation gives what torch gives in one process, NaN and dtype included, or refuses the tensor
before it is touched. Ranks are real, and one process is the oracle.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor

import meshkit
from tests.live.move.values import KINDS, equal
from tests.pool import Pool

RANKS = 4  # of the pool
COMBINE = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}

# a pattern over tp, and the result of a rank from the combined tensor
Result = Callable[[Tensor, int], Tensor]
PATTERNS: dict[str, Result] = {
    "a b +tp -> a b =tp": lambda whole, rank: whole,
    "a b +tp -> a/tp b": lambda whole, rank: whole.tensor_split(RANKS)[rank],
    "a b +tp -> a b/tp": lambda whole, rank: whole.tensor_split(RANKS, 1)[rank],
    "a b +tp -> a b @tp:1": lambda whole, rank: whole if rank == 1 else torch.zeros_like(whole),
    "a/tp b -> a b =tp": lambda whole, rank: whole,
    "a b/tp -> a b =tp": lambda whole, rank: whole,
    "a/tp b -> a b/tp": lambda whole, rank: whole.tensor_split(RANKS, 1)[rank],
    "a/tp b -> a b @tp:0": lambda whole, rank: whole if rank == 0 else torch.zeros_like(whole),
    "a b =tp -> b a/tp": lambda whole, rank: whole.t().tensor_split(RANKS, 1)[rank],
    "a b @tp:1 -> a b =tp": lambda whole, rank: whole,
    "a b @tp:1 -> a/tp b": lambda whole, rank: whole.tensor_split(RANKS)[rank],
}
UNEVEN = ("a b +tp -> a/tp b", "a b =tp -> b a/tp", "a b @tp:1 -> a/tp b")  # a is 6
SCALARS: dict[str, Result] = {
    "+tp -> =tp": lambda whole, rank: whole,
    "+tp -> @tp:1": lambda whole, rank: whole if rank == 1 else torch.zeros_like(whole),
    "@tp:1 -> =tp": lambda whole, rank: whole,
}


def combine(left: str, tensors: Sequence[Tensor], op: str) -> Tensor:
    """Return the tensor of one process whose parts the ranks hold."""
    if "+tp" in left:
        total = reduce(COMBINE["sum" if op == "avg" else op], tensors)
        return total / RANKS if op == "avg" else total
    if "/tp" in left:
        return torch.cat([*tensors], 0 if "a/tp" in left else 1)
    return tensors[1 if "@tp:1" in left else 0]


def is_refused(kind: Tensor, pattern: str, op: str) -> bool:
    """Return whether an operation must refuse a dtype."""
    if "+tp" not in pattern:
        return False
    whole = not (kind.is_floating_point() or kind.is_complex())
    no_backend = kind.dtype in (torch.int16, torch.uint16, torch.float8_e4m3fn)
    return no_backend or (op == "avg" and whole) or (op in ("max", "min") and kind.is_complex())


def run(mesh: meshkit.Mesh, x: Tensor, pattern: str, op: str, sizes: dict[str, int]) -> list[Any]:
    """Return the results of both calls, or their errors."""
    results: list[Any] = []
    for call in (
        lambda: mesh.redistribute(x, pattern, op=op, sizes=sizes),
        lambda: mesh.begin(x, pattern, op=op, sizes=sizes).wait(),
    ):
        try:
            results.append(call())
        except meshkit.SpecError as error:
            results.append(error)
    return results


def move_values(patterns: Sequence[str], names: Sequence[str], scalar: bool) -> list[str]:
    """Return the operations of this rank that are wrong."""
    wrong = []
    with meshkit.build_mesh(tp=RANKS) as mesh:
        for name, pattern in itertools.product(names, patterns):
            left = pattern.partition("->")[0]
            sources = [0] * RANKS if "=tp" in left else range(RANKS)
            tensors = [KINDS[name](rank) for rank in sources]
            if scalar:
                tensors = [x[0, 0] for x in tensors]
            x, before = tensors[mesh.rank], tensors[mesh.rank].clone()
            sizes = {"a": 6} if pattern in UNEVEN and not scalar and len(x) else {}
            for op in COMBINE if "+tp" in left else ["sum"]:
                wanted: Any = None
                if not is_refused(x, pattern, op):
                    whole = combine(left, tensors, op)
                    wanted = {**PATTERNS, **SCALARS}[pattern](whole, mesh.rank)
                results = run(mesh, x, pattern, op, sizes)
                if not all(is_wanted(result, wanted) for result in results):
                    wrong.append(f"{name} by {pattern!r}, {op}: {results}, not {wanted}")
                if not equal(x, before):
                    wrong.append(f"{pattern!r}, {op} has changed {name}")
    return wrong


def is_wanted(result: Tensor | Exception, wanted: Tensor | None) -> bool:
    """Return whether a result is the wanted one; None stands for a refusal."""
    if isinstance(result, Exception) or wanted is None:
        return isinstance(result, Exception) and wanted is None
    return equal(result, wanted)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_redistribution_of_every_kind_is_that_of_one_process(pattern: str, pool: Pool) -> None:
    assert pool.run(move_values, [pattern], [*KINDS], False) == [[]] * RANKS


def test_a_redistribution_of_one_number_is_that_of_one_process(pool: Pool) -> None:
    names = [name for name, make in KINDS.items() if make(0).numel()]
    assert pool.run(move_values, [*SCALARS], names, True) == [[]] * RANKS
