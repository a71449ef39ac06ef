"""A rank on the grid with its live groups: what it can be asked without communicating."""

from __future__ import annotations

import weakref

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..core.call import Call, public
from ..core.errors import MeshkitError
from ..core.grid.axis_names import check_axes_exist
from ..core.grid.group_plan import GroupPlan, missing_group_error
from ..core.grid.position import Position, check_member
from ..core.text import format_sizes
from ..launch.default_group import Job
from .groups.device_mesh import device_mesh
from .groups.registry import GroupRegistry, Groups
from .groups.report import GroupsReport, report_groups


class Grouped(Position):
    """A layout, a rank and its groups. All questions are answered locally.

    Args:
        call: the call that built it, for errors to quote.
        plan: the layout and the groups asked for.
        joined: what is known of the default group.
        groups: this rank's groups.
        shared: those of the mesh and all its views.
        number: that of the meeting in which the ranks agreed on it.
    """

    def __init__(
        self,
        plan: GroupPlan,
        joined: Job,
        groups: Groups,
        shared: GroupRegistry,
        number: int,
    ) -> None:
        super().__init__(plan.layout, joined.world.rank)
        self._call = Call("build_mesh", kwargs=plan.layout.sizes)
        self._plan = plan
        self._joined = joined
        self._groups = groups
        self._held: dict[tuple[str, ...], dist.ProcessGroup] = {}  # those asked for; open only
        self._shared = shared
        self._number = number
        name = format_sizes(plan.layout.sizes)
        self._birth = shared.register(name, groups, number)
        self._closed = False
        self._world = weakref.ref(dist.group.WORLD) if dist.group.WORLD is not None else None

    @public("mesh.group")
    def group(self, *axes: str) -> dist.ProcessGroup:
        """This rank's process group over the axes; without axes, that of the whole mesh.

        Local: it was created by ``build_mesh``. A rank's place in it, ``group.rank()``, is its
        coordinate along the axes as listed, the last fastest.

        Raises:
            UnknownAxisError: for an axis the mesh does not have.
            SpecError: for a group that was not asked for, with the argument that builds it.
            CoordinateError: on a rank outside the mesh.
            MeshkitError: after ``close``, or after ``shutdown``.
        """
        try:
            if not self._gone():
                return self._held[axes]
        except (KeyError, TypeError):  # not asked for until now; or no str
            pass
        check_axes_exist(axes, self.layout.axes)
        self._check_open()
        if not self._plan.has(axes):
            raise missing_group_error(self._plan, axes, self._call)
        self._check_here()
        self._held[axes] = self._groups.by_key[self._plan.group_key(axes)]
        return self._held[axes]

    def device_mesh(self, pattern: str | None = None) -> DeviceMesh:
        """These groups as torch's ``DeviceMesh``, for FSDP2, DTensor, DDP and the rest. Local.

        Args:
            pattern: ``"(dp sp) tp"`` gives a mesh of two dimensions, ``dp_sp`` and ``tp``. Axes
                left out are fixed at this rank's coordinate. None gives every axis by itself.

        Returns:
            A DeviceMesh over existing groups, the members of each checked against the layout. No
            group is made for it; it must not be used after ``close``.

        Raises:
            SpecError: for a pattern that cannot be read, or a group that was not asked for.
            UnknownAxisError: for an axis the mesh does not have.
            CoordinateError: on a rank outside the mesh.
            MeshkitError: after ``close``, or after ``shutdown``.
        """
        device = self._joined.world.device
        kind = device.type if device is not None else "cpu"
        return device_mesh(self.layout, self.rank, self.group, kind, pattern)

    @public("mesh.groups_report")
    def groups_report(self) -> GroupsReport:
        """Which groups this rank holds for the mesh and all its open views, and who shares them.

        Local. ``print`` shows a table; ``.communicators`` is how many there are.

        Raises:
            MeshkitError: after ``close``, or after ``shutdown``.

        Example:
            ``print(mesh.groups_report())``
        """
        self._check_open()
        return report_groups(self.rank, self._shared)

    def _check_here(
        self,
    ) -> None:
        """Refuse a mesh that is closed, and a rank outside it."""
        self._check_open()
        check_member(self.layout, self.rank)

    def _check_open(
        self,
    ) -> None:
        left = self._gone()
        if self._closed or left:
            why = "the mesh is closed" if self._closed else "the job it was built in has been left"
            again = self._call if self._shared.users and not left else self._shared.call
            raise MeshkitError(f"{why}.", fix=f"{again} again.")

    def _gone(self) -> bool:
        """Whether the job the mesh was built in has been left."""
        return self._world is None or self._world() is not dist.group.WORLD

    def __repr__(self) -> str:
        sizes = format_sizes(self.layout.sizes, ", ")
        return f"Mesh({sizes}; {self._place()}{'; closed' if self._closed else ''})"

    def __str__(self) -> str:
        return self.layout.draw(mark=self.rank)

    def _place(self) -> str:
        if self.rank not in self.layout:
            return f"rank {self.rank} is outside"
        return f"rank {self.rank}: {format_sizes(self.coordinate)}"

    def _device(self) -> torch.device:
        """Where tensors of a collective must lie."""
        return self._joined.world.device or torch.device("cpu")
