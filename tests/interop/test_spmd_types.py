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

    from meshkit.interop.spmd_types import register, types

    register()
    before, after = (types(mesh, side) for side in pattern.split(" -> "))
    group = mesh.group("tp")
    ours, theirs = (torch.full((4, 6), 1.0 + mesh.rank, requires_grad=True) for _ in range(2))
    with spmd_types.checker.typecheck():
        for x in (ours, theirs):
            spmd_types.assert_type(x, before)
        y = mesh.redistribute(ours, pattern)
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

    from meshkit.interop.spmd_types import register, types

    register()
    errors = []
    with meshkit.build_mesh(dp=1, tp=2) as mesh, spmd_types.checker.typecheck():
        gather = mesh.redistribution("s/tp d -> s d *tp")
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


def run_other_moves() -> list[Any]:
    """Return types after a shift, after moves without a gradient, and after one to a view."""
    import spmd_types
    import spmd_types.checker

    from meshkit.interop.spmd_types import register, types

    register()
    type_of = spmd_types.get_axis_local_type
    with meshkit.build_mesh(dp=2, tp=2) as mesh, mesh.view(x=4) as flat:
        tp, x_group = mesh.group("tp"), flat.group("x")
        with spmd_types.checker.typecheck():
            x = spmd_types.assert_type(torch.ones(4, requires_grad=True), types(mesh, "s/tp *dp"))
            passed = mesh.shift(x, "tp")
            gathered = mesh.redistribute(x.detach(), "s/tp *dp -> s")
            part = mesh.redistribute(x.detach(), "s/tp *dp -> s/x", to=flat)
            kinds = type_of(passed, tp), type_of(gathered, tp), type_of(part, x_group)
        return [kind.name for kind in kinds]


def test_shifts_and_moves_without_a_gradient_and_to_a_view_have_types() -> None:
    for outcomes in meshkit.spawn(run_other_moves, 4, timeout=120):
        assert outcomes == ["V", "R", "V"]


def run_without_checker() -> list[float]:
    from meshkit.interop.spmd_types import register, types

    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        names = {
            str(kind) for kind in types(mesh, "b/dp/tp (h d/tp)".replace("/dp/tp", "/dp")).values()
        }
        assert len(names) == 2
        register()
        moved: list[float] = mesh.redistribute(torch.tensor([mesh.rank]), "s/tp -> s").tolist()
        return moved


def test_outside_the_checker_it_is_the_plain_redistribution() -> None:
    assert meshkit.spawn(run_without_checker, 4, timeout=120) == [[0, 1], [0, 1], [2, 3], [2, 3]]
