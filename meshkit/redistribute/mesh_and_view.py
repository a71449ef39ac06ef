"""This rank on a mesh, and on a view of it that the right side of a pattern names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import torch.distributed as dist

from ..errors import SpecError
from ..groups.registry import MeshGroups
from ..launch.of_one_process import OfOneProcess
from ..layout.group_plan import missing_group_error
from ..layout.layout import Layout
from ..text import format_sizes
from . import move
from .digits import CommonAxes
from .mesh_move import find_views
from .pattern import Pattern, drop_axes
from .program import Axes


@dataclass(frozen=True, eq=False)
class MeshAndView(OfOneProcess):
    """This rank on a mesh, and on a view of it that the right side of a pattern names."""

    mesh: MeshGroups  # the groups of the mesh
    view: MeshGroups | None  # those of the view; None if both sides name axes of the mesh
    is_checked: Callable[[], bool]  # returns whether ``mesh.checked()`` is active

    @cached_property
    def common(self) -> CommonAxes | None:
        """The common factors of the axes of the mesh and the view; None without a view."""
        if self.view is None:
            return None
        return find_views(self.mesh.plan.layout, self.view.plan.layout)

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
            move.check_axes(pattern, self.sizes)
            return
        self.view.check_usable()
        move.check_axes(Pattern(pattern.left, pattern.left), self.mesh.plan.layout.sizes)
        move.check_axes(Pattern(pattern.right, pattern.right), self.view.plan.layout.sizes)

    def rewrite(self, pattern: Pattern) -> Pattern:
        """Return the pattern over the axes of ``sizes``."""
        if self.common is None:
            return drop_axes(pattern, self.sizes)
        return self.common.rewrite(pattern)

    def unmarked_axes(self, pattern: Pattern) -> list[tuple[int, str]]:
        """Return the axes without a mark on one side, each after that side."""
        return (
            move.unmarked_axes(pattern)
            if self.common is None
            else self.common.unmarked_axes(pattern)
        )

    def group_of(self, axes: Axes) -> dist.ProcessGroup:
        """Return the group over some axes longer than 1, in the order of the mesh. Local."""
        self.mesh.check_open()
        group = self.find_group(axes)
        return self._raise_missing(axes) if group is None else group

    def find_group(self, axes: Axes) -> dist.ProcessGroup | None:
        """Return the group of the mesh or the view over some axes; None if there is none."""
        if self.common is None or self.view is None:
            return self.mesh.groups.by_key.get(axes)
        self.view.check_open()
        wanted = Layout.of(self.common.sizes).strides(axes)
        for groups in (self.mesh, self.view):
            layout = groups.plan.layout
            for key, group in groups.groups.by_key.items():
                if layout.strides(key) == wanted:
                    return group
        return None

    def _raise_missing(self, axes: Axes) -> NoReturn:
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
