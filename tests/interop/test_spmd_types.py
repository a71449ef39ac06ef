"""Typed redistributions inside the checker of spmd_types, beside its own collectives."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

import meshkit

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("spmd_types") is None,
    reason="spmd_types is not installed: pip install -e '.[interop]'",
)
MOVES = [
    ("s/tp d -> s d *tp", "all_gather"),
    ("s/tp d -> s d =tp", "all_gather"),
    ("s d +tp -> s/tp d", "reduce_scatter"),
    ("s d +tp -> s d *tp", "all_reduce"),
    ("s d +tp -> s d =tp", "all_reduce"),
    ("s/tp d -> s d/tp", "all_to_all"),
]


def run_moves() -> list[Any]:
    with meshkit.build_mesh(dp=1, tp=2) as mesh:
        return [run_move(mesh, pattern, name) for pattern, name in MOVES]


def run_move(mesh: meshkit.Mesh, pattern: str, name: str) -> list[bool]:
    """Return whether values and gradients are those of a collective of spmd_types."""
    import spmd_types
    import spmd_types.checker

    from meshkit.interop.spmd_types import typed, types

    before, after = (types(mesh, side) for side in pattern.split(" -> "))
    group = mesh.group("tp")
    ours, theirs = (torch.full((4, 6), 1.0 + mesh.rank, requires_grad=True) for _ in range(2))
    with spmd_types.checker.typecheck():
        for x in (ours, theirs):
            spmd_types.assert_type(x, before)
        y = typed(mesh, pattern)(ours)
        collective = getattr(spmd_types, name)
        z = collective(theirs, group, src=before[group], dst=after[group])
        is_typed = spmd_types.get_local_type(y) == spmd_types.get_local_type(z)
    scale = 1.0 if "=" in pattern else 2.0 + mesh.rank
    gradients = [
        torch.autograd.grad(result, x, torch.full((*result.shape,), scale))
        for result, x in ((y, ours), (z, theirs))
    ]
    return [is_typed, torch.equal(y, z), torch.equal(gradients[0][0], gradients[1][0])]


def test_values_gradients_and_types_are_those_of_its_own_collectives() -> None:
    for by_move in meshkit.spawn(run_moves, 2, timeout=120):
        assert by_move == [[True, True, True] for _ in MOVES]


def refuse() -> list[Any]:
    """Return the errors of a tensor of another type, and of a result used against its type."""
    import spmd_types
    import spmd_types.checker

    from meshkit.interop.spmd_types import typed, types

    errors = []
    with meshkit.build_mesh(dp=1, tp=2) as mesh, spmd_types.checker.typecheck():
        gather = typed(mesh, "s/tp d -> s d *tp")
        for side in ("s d =tp", "s d +tp", "s/tp d"):
            x = torch.ones(2, 2)
            spmd_types.assert_type(x, types(mesh, side))
            try:
                gather(x)
            except spmd_types.SpmdTypeError as error:
                errors.append(str(error))
    return errors


def test_a_tensor_of_another_type_is_refused() -> None:
    for errors in meshkit.spawn(refuse, 2, timeout=120):
        assert len(errors) == 2


def run_without_checker() -> list[float]:
    from meshkit.interop.spmd_types import typed, types

    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        names = {
            str(kind) for kind in types(mesh, "b/dp/tp (h d/tp)".replace("/dp/tp", "/dp")).values()
        }
        assert len(names) == 2
        moved: list[float] = typed(mesh, "s/tp -> s")(torch.tensor([float(mesh.rank)])).tolist()
        return moved


def test_outside_the_checker_it_is_the_plain_redistribution() -> None:
    assert meshkit.spawn(run_without_checker, 4, timeout=120) == [[0, 1], [0, 1], [2, 3], [2, 3]]
