"""Redistributions with the types of ``spmd_types``, so that its checker accepts them.

::

    side          type
    s/a           S(i)     i is the index of s; V if several axes cut s, or inside brackets
    +a            P        partial
    *a            R        replicate: the gradient is partial
    =a            I        invariant: the gradient is equal on all ranks
    @a:k          V        varying

Tested with spmd_types 0.3. An axis of size 1 has no type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..core.call import public
from ..core.redistribute.pattern import Side, parse_pattern
from ..live.mesh import Mesh

MARKS = {"+": "P", "*": "R", "=": "I", "@": "V"}


@public("types")
def types(mesh: Mesh, side: str) -> dict[dist.ProcessGroup, Any]:
    """Return the type of a tensor along the group of each axis, for ``assert_type``. Local.

    Args:
        mesh: the mesh.
        side: one side of a pattern, such as ``"b s/sp d =tp"``.

    Raises:
        SpecError: if the side is invalid.
        UnknownAxisError: if the mesh does not have an axis.

    Example:
        ``spmd_types.assert_type(x, types(mesh, "b s/tp d"))``
    """
    return _types(mesh, parse_pattern(f"{side} -> {side}").left)


@public("typed")
def typed(mesh: Mesh, pattern: str, **options: Any) -> Callable[[Tensor], Tensor]:  # noqa: ANN401
    """Return the redistribution of a pattern, typed inside ``spmd_types.checker.typecheck``. Local.

    Inside the checker, a call asserts the types of the left side and gives the result those of the
    right side. An axis that the right side does not name is ``R``. Outside, a call is the plain
    redistribution.

    Args:
        mesh: the mesh.
        pattern: the division before and after, see :meth:`meshkit.Mesh.redistribute`.
        **options: those of ``mesh.redistribution``: ``op``, ``grad_dtype`` and sizes.

    Returns:
        A function of the local tensor. Collective over the axes that change.

    Raises:
        SpecError: as ``mesh.redistribution``.
        UnknownAxisError: if the mesh does not have an axis.

    Example:
        ``gather = typed(mesh, "b s/tp d -> b s d *tp")``
    """
    import spmd_types

    move = mesh.redistribution(pattern, **options)
    left, right = move.pattern.left, move.pattern.right
    copies = {axis: "R" for axis in left.types if axis not in right.types}

    def call(x: Tensor) -> Tensor:
        if not spmd_types.is_type_checking():
            return move(x)
        spmd_types.assert_type(x, _types(mesh, left))
        with spmd_types.no_typecheck():
            y = move(x)
        return spmd_types.assert_type(y, _types(mesh, right, copies))  # type: ignore[no-any-return]

    return call


def _types(
    mesh: Mesh, side: Side, others: dict[str, str] | None = None
) -> dict[dist.ProcessGroup, Any]:
    """Return the types of a side, and those of axes that it does not name, for long axes."""
    import spmd_types

    names = {**(others or {}), **{mark.axis: MARKS[mark.type.symbol] for mark in side.marks}}
    known = {axis: getattr(spmd_types, name) for axis, name in names.items()}
    for index, entry in enumerate(side.entries):
        for number, dim in enumerate(entry):
            is_plain = number == 0 and len(dim.axes) == 1
            cut = spmd_types.S(index) if is_plain else spmd_types.V
            known.update(dict.fromkeys(dim.axes, cut))
    return {mesh.group(axis): kind for axis, kind in known.items() if mesh.size(axis) > 1}
