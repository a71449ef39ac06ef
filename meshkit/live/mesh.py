"""Mesh: a layout, this process' rank, and its live process groups."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from torch.distributed.device_mesh import DeviceMesh

from ..core.call import drop_none, public
from ..core.errors import MeshkitError
from ..core.grid.factor import merge_sizes
from ..core.grid.group_plan import GroupPlan
from ..core.grid.layout import Layout
from ..core.report.verification import Verification
from ..launch.agreement.consensus import Participants
from ..launch.current_job import Job
from ..launch.timeouts import Time, parse_timeout
from ..launch.torch_internals import timeout_of
from .groups.create import abort_groups, destroy_groups, ends_together
from .groups.options import GroupOptions
from .groups.registry import NONE, GroupRegistry
from .guard.barrier import barrier
from .guard.guard import guard_collectives
from .guard.roll_call import GuardContext, GuardState
from .guard.verify import verify_groups
from .setup.adopt import call_of, given_groups, of_device_mesh, wrap_groups
from .setup.assemble import assemble
from .setup.proposal import agree_close, agree_value, announce_refusal, coordinate_formatter
from .setup.view import view_plan, view_terms
from .workload import Workload


class Mesh(Workload):
    """The mesh of one process: who it is, who its peers are, and the groups they share.

    Made by :func:`meshkit.build_mesh`. Every question about the grid is answered by ``layout``;
    only ``view``, ``barrier``, ``agree`` and ``verify`` communicate. ``with`` closes it at the end.
    Making one is collective over the world: ranks agree, then create what is not there.

    Args:
        call: the call that builds it, for errors to quote.
        plan: the layout and the groups asked for.
        joined: what is known of the default group, with the times of this mesh.
        terms: on what terms groups are made.
        shared: the groups of the meshes of which this is a view; a new book for a new mesh.
    """

    def __init__(
        self, plan: GroupPlan, joined: Job, terms: GroupOptions, shared: GroupRegistry
    ) -> None:
        groups, number = assemble(plan, joined, terms, shared)
        super().__init__(plan, joined, groups, shared, number)
        self._terms = terms
        self._guard_state = GuardState()

    @classmethod
    def from_groups(cls, layout: Layout, groups: Mapping[str | tuple[str, ...], object], /) -> Mesh:
        """A mesh over process groups that exist. Collective over the world.

        The groups are used, by views too, with the times they have, and never destroyed. Those that
        a mesh needs beside them are made: of the other axes, of the whole, of one. The default
        group stands for the world. One store operation a lent group, as all must lend the same.

        Args:
            layout: the grid.
            groups: axes to this rank's group: ``{"dp": g, "dp sp": h}``; on a rank outside the
                layout, to None.

        Raises:
            SpecError: where a group does not hold exactly the ranks that the layout says, in that
                order, or ranks are not in the world. The other ranks are told.
            UnknownAxisError: for an axis that the layout does not have.
            LaunchError: where no default group exists.
            DisagreementError: where ranks hand in different layouts or axes.
            RankTimeoutError: where ranks did not arrive in time.
        """
        call_of(layout, groups)
        return cls(*wrap_groups(lambda: given_groups(layout, groups)))

    @classmethod
    @public("Mesh.from_device_mesh")
    def from_device_mesh(cls, device_mesh: DeviceMesh, /) -> Mesh:
        """A mesh over a DeviceMesh and its groups. Collective over the world.

        Args:
            device_mesh: with names, equal on every rank: a whole one, not a slice of this rank.

        Raises:
            SpecError: for a DeviceMesh without names, or with groups whose members are not in the
                order of its ranks; and the errors of :meth:`from_groups`.
        """
        return cls(*wrap_groups(lambda: of_device_mesh(device_mesh)))

    @public("mesh.view")
    def view(
        self,
        sizes: Mapping[str, int] | None = None,
        /,
        *,
        order: str | Iterable[str] | None = None,
        groups: str | Sequence[str | Iterable[str]] | None = None,
        timeout: Time | Mapping[str, Time] | None = None,
        arrival_timeout: Time | None = None,
        **axes: int,
    ) -> Mesh:
        """The same ranks in the same order, factored otherwise, as a mesh of its own.

        Collective over the world, as ``build_mesh``. Every group whose members, order, backend and
        timeout are those of a group of this mesh, or of another of its views, is that group;
        only what is not there is made. Close it: its groups stay open while it is only dropped.

        Args:
            sizes: axis name to size; the same as ``**axes``.
            order: axis names from the outside in; None keeps the order in which axes are written.
            groups: as in ``build_mesh``.
            timeout: as in ``build_mesh``; None is that of this mesh, group by group.
            arrival_timeout: as in ``build_mesh``; None is that of this mesh.
            **axes: axis name to size, the outermost first; one may be -1.

        Raises:
            SpecError: where the product is not the number of ranks; where standard axes stand out
                of the standard order, without ``order``; for a time that cannot be.
            UnknownAxisError: for an axis in ``groups`` or ``timeout`` that the view does not have.
            DisagreementError: where ranks ask for different views, or have others open.
            RankTimeoutError: where ranks did not arrive in time.
            MeshkitError: after ``close``, or after ``shutdown``.

        Example:
            ``hsdp = mesh.view(replicate=2, shard=-1, tp=2)``
        """
        drop_none(order=order, groups=groups, timeout=timeout, arrival_timeout=arrival_timeout)
        try:
            self._check_open()
            plan = view_plan(self.layout, merge_sizes(sizes, axes), order, groups)
            times = (timeout, arrival_timeout)
            record, terms = view_terms(plan, *times, self._joined, self._terms, self._plan)
        except MeshkitError as error:
            announce_refusal(self._joined.world, error)
            raise
        return Mesh(plan, record, terms, self._shared)

    @public("mesh.barrier")
    def barrier(self, *axes: str, timeout: Time | None = None) -> None:
        """Wait until every rank of this rank's group over the axes is here.

        Collective over that group. Without axes, over the whole mesh. One store operation a rank
        beside the group's own barrier, so that missing ranks can be named on any backend.

        Args:
            *axes: as in :meth:`group`.
            timeout: how long to wait, in seconds or as a timedelta; None is the group's timeout.

        Raises:
            RankTimeoutError: where others did not come in time, with their coordinates; the group
                is then broken.
            CollectiveError: where it broke before that, as a rank died.
        """
        self._check_here()
        group = self.group(*axes)
        limit = parse_timeout("timeout", timeout) or timeout_of(group)
        barrier(
            self._party(axes), group, limit, self._device_ids(), coordinate_formatter(self.layout)
        )

    @public("mesh.guard")
    def guard(self, *, timeout: Time | None = None) -> AbstractContextManager[None]:
        """Tell the failure of a collective inside in coordinates: who is behind, who is gone.

        Enter it on every rank. Without a timeout it costs nothing until something fails. With one,
        a collective of the mesh's groups may take that long inside (on gloo; elsewhere, a rank may
        begin nothing new for that long), and a thread on each rank looks at the store twice a
        second, so that ranks that hang answer too. An error of any other kind passes unchanged.

        Args:
            timeout: how long one collective may take, in seconds or as a timedelta; None leaves
                each group its own.

        Raises:
            CollectiveError: the same on every rank that notices, within 4 s of torch's own error,
                which is the cause. Close the mesh, shut down and build again then. See
                ``meshkit/live/README.md`` for what is promised.
            CoordinateError: on a rank outside the mesh.
            MeshkitError: after ``close``, or after ``shutdown``.

        Example:
            ``with mesh.guard(timeout=60): train_step()``
        """
        self._check_here()
        limit = parse_timeout("timeout", timeout)
        return guard_collectives(self._guard_context(), limit)

    @public("mesh.verify")
    def verify(self, *, timeout: Time | None = None) -> Verification:
        """Prove each group by one collective, and time some more.

        Collective over the mesh: six collectives a group of a few bytes each, and one over all. On
        every group ranks gather each other's numbers, which must come in the order of the
        coordinate; then the same call is timed. All ranks know all figures.

        Args:
            timeout: how long one collective may take, in seconds or as a timedelta; None leaves
                each group its own.

        Returns:
            What it took by group, the slowest group and the rank for which others waited most.

        Raises:
            CollectiveError: where a collective failed or did not come through, with who is behind.
            MeshkitError: where a group holds other ranks than the mesh says.
            CoordinateError: on a rank outside the mesh.
        """
        self._check_here()
        limit = parse_timeout("timeout", timeout)
        with guard_collectives(self._guard_context(), limit):
            return verify_groups(self.layout, self.rank, self._groups.by_key, self._device())

    @public("mesh.agree")
    def agree(self, what: str, value: object) -> None:
        """Compare a value over all ranks of the mesh: a learning rate, a path, a version.

        Collective over the mesh, on the host: five store operations a rank, no process group.

        Args:
            what: what the value is, for the error.
            value: compared by its ``repr``.

        Raises:
            DisagreementError: the same on every rank, with who has which value.
            RankTimeoutError: where ranks did not come within the mesh's ``arrival_timeout``.
            CoordinateError: on a rank outside the mesh.
        """
        self._check_here()
        agree_value(self.layout, self._joined, self._number, what, value)

    def close(self) -> None:
        """Destroy the groups this mesh made and no open view of it uses. Harmless to repeat.

        Call it on every rank. The default group stays, and so do groups that the user made. No
        descriptor and no thread is left, once the caller too has let go of the groups it took.
        Local on gloo. On nccl, which ends a group on all ranks together, they meet first, unless an
        error ends the ``with``: close views in the same order on every rank there.

        Raises:
            RankTimeoutError: on nccl, where ranks did not come; the groups are then aborted.
            DisagreementError: on nccl, where a rank makes another call.
        """
        self._close(alone=False)

    def _close(self, alone: bool) -> None:
        # torch frees descriptors and threads with the last reference
        together = ends_together(self._groups.by_key.values())
        made, self._groups, self._closed = self._shared.release(self._birth), NONE, True
        self._held.clear()
        if not together:
            return destroy_groups(made)
        try:
            if alone:
                abort_groups(made)
            else:
                agree_close(self.layout, self._joined, self._number, self._call)
        except BaseException:
            abort_groups(made)
            raise
        finally:
            destroy_groups(made)

    @public("with mesh")
    def __enter__(self) -> Mesh:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(alone=error is not None)

    def _party(self, axes: tuple[str, ...]) -> Participants | None:
        """The ranks of a group at the store; None where torch tells no store."""
        ranks = sorted(int(rank) for rank in self.peers(*axes))
        who = hashlib.sha256(str(ranks).encode()).hexdigest()  # one name for equal groups
        keys = f"mesh/{self._number}/barrier/{who}/"
        return self._joined.participants(ranks, keys)

    def _guard_context(
        self,
    ) -> GuardContext:
        """Return everything that a guard needs to know of this mesh."""
        ids = self._number, self._guard_state
        return GuardContext(self.layout, self._joined, self._groups.by_key, *ids)

    def _device_ids(self) -> list[int] | None:
        """The device a collective without tensors must use, where the backend needs one."""
        device = self._joined.world.device
        return [device.index] if device is not None and device.index is not None else None
