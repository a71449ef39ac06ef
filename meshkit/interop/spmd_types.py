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

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..call import quotes_call
from ..layout.layout import Layout
from ..mesh.mesh import Mesh
from ..redistribute.pattern import Side, parse_pattern
from ..redistribute.redistribution import MeshMoves, Redistribution
from ..redistribute.ring import Ring

MARKS = {"+": "P", "*": "R", "=": "I", "@": "V"}


@quotes_call("types")
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
    return _types(parse_pattern(f"{side} -> {side}").left, mesh.group, mesh.layout)


@quotes_call("register")
def register() -> None:
    """Type all moves of tensors inside ``spmd_types.checker.typecheck``. Local.

    Call it once. Inside the checker, ``mesh.redistribute`` and each redistribution then assert the
    types of the left side, and give the result those of the right side. An axis that the right side
    does not name is ``R``. ``mesh.shift`` keeps the type. Outside the checker nothing changes.

    Example:
        ``register()``, and inside the checker ``y = mesh.redistribute(x, "b s/tp d -> b s d *tp")``
    """
    Redistribution.run = _run_typed  # type: ignore[method-assign]
    MeshMoves.shift = _shift_typed  # type: ignore[method-assign]


_run_plain, _shift_plain = Redistribution.run, MeshMoves.shift


def _shift_typed(self: MeshMoves, ring: Ring, x: Tensor, steps: int) -> Tensor:
    import spmd_types

    if not spmd_types.is_type_checking():
        return _shift_plain(self, ring, x, steps)
    with spmd_types.no_typecheck():
        y = _shift_plain(self, ring, x, steps)
    spmd_types.assert_type_like(y, x)
    return y


def _run_typed(self: Redistribution, x: Tensor) -> Tensor:
    import spmd_types

    if not spmd_types.is_type_checking():
        return _run_plain(self, x)
    left, right = self.pattern.left, self.pattern.right
    before, after = self.place.mesh, self.place.view or self.place.mesh
    spmd_types.assert_type(x, _types(left, before.get, before.plan.layout))
    with spmd_types.no_typecheck():
        y = _run_plain(self, x)
    copies = {axis: "R" for axis in left.types if axis not in right.types and after is before}
    wanted = _types(right, after.get, after.plan.layout, copies)
    return spmd_types.assert_type(y, wanted)  # type: ignore[no-any-return]


def _types(
    side: Side,
    group_of: Callable[[tuple[str]], dist.ProcessGroup],
    layout: Layout,
    others: Mapping[str, str] | None = None,
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
    return {group_of((axis,)): kind for axis, kind in known.items() if layout.size(axis) > 1}
