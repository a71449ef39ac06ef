"""The redistributions of one mesh, by pattern and options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import SpecError
from ..groups.registry import MeshGroups
from ..launch.of_one_process import OfOneProcess
from ..layout.sequence import SequencePlan
from . import move
from .dim_sizes import split_dim_sizes
from .mesh_and_view import MeshAndView
from .mesh_move import find_views
from .mesh_pair import MeshPair
from .pattern import parse_pattern
from .redistribution import Cache, Redistribution
from .ring import Ring, make_ring, shift_tensor
from .to_mesh import MeshRedistribution

Given = tuple[tuple[str, int | SequencePlan], ...]


class MeshMoves(OfOneProcess):
    """The redistributions of one mesh."""

    def __init__(self, groups: MeshGroups, device: torch.device) -> None:
        self.groups = groups
        self.device = device
        self._is_checked = False  # whether ``mesh.checked()`` is active
        self.known: Cache[Redistribution | MeshRedistribution] = Cache()
        self.rings: Cache[Ring] = Cache()

    def find(
        self,
        pattern: str,
        op: str,
        grad_dtype: torch.dtype | None,
        view: MeshGroups | None,
        sizes: Given,
    ) -> Any:  # noqa: ANN401  # a Redistribution, or a MeshRedistribution
        """Return the redistribution of a pattern, made once. Local."""
        key = pattern, op, grad_dtype, view, sizes
        try:
            known = self.known.get(key)
        except TypeError:  # a list, for example, has no hash
            split_dim_sizes(parse_pattern(pattern), dict(sizes))
            raise
        return self._make(key) if known is None else known

    def find_for_call(self, *key: Any) -> Any:  # noqa: ANN401
        """Return the same for a collective call: another mesh learns that a pattern is refused."""
        try:
            return self.find(*key)
        except Exception:
            view: MeshGroups | None = key[3]
            if view is None or not self._is_other(view) or self.pair(view).is_outside:
                raise
            self.pair(view).check_open()
            with self.pair(view).announcing("mesh.redistribute"):
                raise

    def publish(self, *key: Any) -> str:  # noqa: ANN401
        """Return the attribute of ``known`` with a redistribution, for torch.compile."""
        self.find(*key)
        return self.known.publish(key)

    def publish_ring(self, axis: str) -> str:
        """Return the attribute of ``rings`` with a ring, for torch.compile."""
        if self.rings.get(axis) is None:
            self.rings.add(axis, make_ring(self.groups, axis))
        return self.rings.publish(axis)

    def shift(self, ring: Ring, x: torch.Tensor, steps: int) -> torch.Tensor:
        """Pass a tensor along an axis. Collective."""
        return shift_tensor(self.groups, ring, x, steps)

    def _make(self, key: Any) -> Redistribution | MeshRedistribution:  # noqa: ANN401
        text, op, grad_dtype, view, given = key
        pattern = parse_pattern(text)
        move.check_op(pattern, op)
        if grad_dtype is not None and not (
            isinstance(grad_dtype, torch.dtype)
            and (grad_dtype.is_floating_point or grad_dtype.is_complex)
        ):
            fix = "grad_dtype=torch.float32, or leave it out."
            raise SpecError(f"grad_dtype is {grad_dtype!r}, no dtype of gradients.", fix=fix)
        sizes, plans = split_dim_sizes(pattern, dict(given))
        made: Redistribution | MeshRedistribution
        if view is not None and self._is_other(view):
            made = MeshRedistribution(pattern, self.pair(view), op, grad_dtype, sizes, plans)
        else:
            place = MeshAndView(self.groups, view, self.is_checked)
            place.check_pattern(pattern)
            made = Redistribution(pattern, place, op, grad_dtype, sizes, plans)
        return self.known.add(key, made)

    def _is_other(self, view: MeshGroups) -> bool:
        """Return whether a move goes to another mesh. Outside both, all give None."""
        layout = self.groups.plan.layout
        return find_views(layout, view.plan.layout) is None or self.groups.rank not in layout

    def pair(self, other: MeshGroups) -> MeshPair:
        """Return this mesh and another one, to which a move goes."""
        return MeshPair(self.groups, other, self.device, self.is_checked)

    def is_checked(self) -> bool:
        """Return whether ``mesh.checked()`` is active."""
        return self._is_checked

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Check the marks of all redistributions inside."""
        before, self._is_checked = self._is_checked, True
        try:
            yield
        finally:
            self._is_checked = before
