"""The moves of one mesh: its redistributions by pattern, and the check of their marks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...core.data.sequence import SequencePlan
from ...core.errors import SpecError
from ...core.redistribute.dim_sizes import split_sizes
from ...core.redistribute.move import check_op
from ...core.redistribute.pattern import parse_pattern
from ..group_registry import MeshGroups
from .handle import Handle
from .place import MoveState, Place
from .redistribution import Options, Redistribution
from .shift import Ring, make_ring, shift_tensor

Given = tuple[tuple[str, int | SequencePlan], ...]


class MeshMoves:
    """The redistributions of one mesh.

    Attributes:
        groups: the groups of the mesh.
        state: the state of ``mesh.checked()``.
    """

    def __init__(self, groups: MeshGroups) -> None:
        self.groups = groups
        self.state = MoveState()
        self._known: dict[Any, Redistribution] = {}

    def find(
        self,
        pattern: str,
        op: str,
        grad_dtype: torch.dtype | None,
        view: MeshGroups | None,
        sizes: Given,
    ) -> Redistribution:
        """Return the redistribution of a pattern, made once. Local."""
        key = pattern, op, grad_dtype, view, sizes
        try:
            found = self._known.get(key)
        except TypeError:  # a list, for example, has no hash
            split_sizes(parse_pattern(pattern), dict(sizes))
            raise
        return self._make(key) if found is None else found

    def publish(self, *key: Any) -> str:  # noqa: ANN401
        """Return the name of an attribute that holds a redistribution, for torch.compile.

        Torch reads a dict once in a trace, so it would miss what is added to it later.
        """
        found = self.find(*key)
        name = f"traced_{[*self._known.values()].index(found)}"
        setattr(self, name, found)
        return name

    def ring(self, axis: str) -> Ring:
        """Return the ring of this rank along an axis. Local."""
        return make_ring(self.groups, axis)

    def publish_ring(self, axis: str) -> str:
        """Return the name of an attribute that holds a ring, as :meth:`publish` does."""
        name = f"ring_{axis}"
        setattr(self, name, self.ring(axis))
        return name

    def shift(self, ring: Ring, x: torch.Tensor, steps: int) -> torch.Tensor:
        """Pass a tensor along an axis. Collective. See :meth:`meshkit.Mesh.shift`."""
        return shift_tensor(ring, x, steps)

    def _make(self, key: Any) -> Redistribution:  # noqa: ANN401
        text, op, grad_dtype, view, given = key
        pattern = parse_pattern(text)
        place = Place(self.groups, self.state, view)
        place.check_pattern(pattern)
        check_op(pattern, op)
        _check_dtype(grad_dtype)
        sizes, plans = split_sizes(pattern, dict(given))
        made = Redistribution(pattern, place, Options(op, grad_dtype, sizes, plans))
        self._known[key] = made
        return made

    def begin(
        self, x: torch.Tensor, pattern: str, op: str, view: MeshGroups | None, sizes: Given
    ) -> Handle:
        """Begin a redistribution. Collective. See :meth:`meshkit.Mesh.begin`."""
        return self.find(pattern, op, None, view, sizes).begin(x)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Check the marks of all redistributions inside."""
        before, self.state.is_checked = self.state.is_checked, True
        try:
            yield
        finally:
            self.state.is_checked = before


def _check_dtype(grad_dtype: object) -> None:
    """Check that sums of gradients in this dtype keep fractions."""
    if grad_dtype is None:
        return
    if not isinstance(grad_dtype, torch.dtype) or not (
        grad_dtype.is_floating_point or grad_dtype.is_complex
    ):
        fix = "grad_dtype=torch.float32, or leave it out."
        raise SpecError(f"grad_dtype is {grad_dtype!r}, no dtype of gradients.", fix=fix)
