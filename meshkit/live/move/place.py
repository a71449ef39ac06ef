"""Place: the axes, the coordinate and the groups of this rank, for moves on a mesh."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch.distributed as dist

from ...core.errors import SpecError
from ...core.grid.group_plan import missing_group_error
from ...core.grid.layout import Layout
from ...core.redistribute.move import Move, check_axes, unmarked_axes
from ...core.redistribute.pattern import Pattern, drop_axes
from ...core.redistribute.views import CommonAxes, find_common_axes
from ...core.text import format_sizes
from ..group_registry import MeshGroups

Axes = tuple[str, ...]


@dataclass
class MoveState:
    """Whether ``mesh.checked()`` is active."""

    is_checked: bool = False


@dataclass(frozen=True, eq=False)
class Place:
    """This rank on a mesh, and on a view of it that the right side of a pattern names."""

    mesh: MeshGroups  # the groups of the mesh
    state: MoveState = field(default_factory=MoveState)  # the state of ``mesh.checked()``
    # the groups of the view; None if both sides name axes of the mesh
    view: MeshGroups | None = None

    @cached_property
    def common(self) -> CommonAxes | None:
        """The common factors of the axes of the mesh and the view; None without a view."""
        if self.view is None:
            return None
        before, after = self.mesh.plan.layout, self.view.plan.layout
        if before.rank_positions != after.rank_positions:
            line = "the other mesh has other ranks, or another order of them."
            raise SpecError(line, fix="to=mesh.view(...), which keeps the ranks and their order.")
        return find_common_axes(before.sizes, after.sizes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of the axes by name, the outermost first."""
        return self.mesh.plan.layout.sizes if self.common is None else self.common.sizes

    @cached_property
    def coordinate(self) -> dict[str, int]:
        """The coordinate of this rank along these axes."""
        coordinate = self.mesh.plan.layout.coordinate(self.mesh.rank)
        return coordinate if self.common is None else self.common.coordinate(coordinate)

    def check_pattern(self, pattern: Pattern) -> None:
        """Check that the mesh is open, and that the axes of both sides exist."""
        self.mesh.check_usable()
        if self.view is None:
            check_axes(pattern, self.sizes)
            return
        self.view.check_usable()
        check_axes(Pattern(pattern.left, pattern.left), self.mesh.plan.layout.sizes)
        check_axes(Pattern(pattern.right, pattern.right), self.view.plan.layout.sizes)

    def rewrite(self, pattern: Pattern) -> Pattern:
        """Return the pattern over the axes of ``sizes``."""
        if self.common is None:
            return drop_axes(pattern, self.sizes)
        return self.common.rewrite(pattern)

    def unmarked_axes(self, pattern: Pattern) -> list[tuple[int, str]]:
        """Return the axes without a mark on one side, each after that side."""
        return unmarked_axes(pattern) if self.common is None else self.common.unmarked_axes(pattern)

    def check_even(self, move: Move) -> None:
        """Check that all parts are equal, if the axes of the view have several factors."""
        if self.common is not None:
            self.common.check_even(move)

    def group_of(self, axes: Axes) -> dist.ProcessGroup:
        """Return the group over some axes longer than 1, in the order of the mesh. Local."""
        self.mesh.check_open()
        group = self.mesh.groups.by_key.get(axes)
        if group is not None and self.common is None:
            return group
        return self._find_group(axes)

    def has_group(self, axes: Axes) -> bool:
        """Return whether the group over some axes longer than 1 was built. Local."""
        return axes in self.mesh.groups.by_key or self._shared_group(axes) is not None

    def _shared_group(self, axes: Axes) -> dist.ProcessGroup | None:
        """Return the group of the mesh or the view with the members that common axes give."""
        if self.common is None or self.view is None:
            return None
        wanted = Layout.of(self.common.sizes).strides(*axes)
        for groups in (self.mesh, self.view):
            layout = groups.plan.layout
            for key, group in groups.groups.by_key.items():
                if layout.strides(*key) == wanted:
                    return group
        return None

    def _find_group(self, axes: Axes) -> dist.ProcessGroup:
        """Return the group of the mesh or the view, or raise."""
        if self.view is not None:
            self.view.check_open()
        group = self._shared_group(axes)
        if group is not None:
            return group
        if self.common is None or self.view is None:
            raise missing_group_error(self.mesh.plan, axes, self.mesh.extended_by)
        for groups, factors in (self.mesh, self.common.left), (self.view, self.common.right):
            names = tuple(a for a, parts in factors.items() if parts and {*parts} <= {*axes})
            if {part for name in names for part in factors[name]} == {*axes}:
                raise missing_group_error(groups.plan, names, groups.extended_by)
        sizes = {axis.replace(".", "_"): size for axis, size in self.common.sizes.items()}
        group_name = " ".join(axes).replace(".", "_")
        raise SpecError(
            f"neither the mesh nor its view has the group over {' '.join(axes)}.",
            f"The common axes are {format_sizes(self.common.sizes)}.",
            fix=f"to=mesh.view({sizes}, groups=[{group_name!r}]), and a right side in its axes.",
        )
