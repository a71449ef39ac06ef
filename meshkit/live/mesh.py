"""Mesh: a layout, this process' rank, and its live process groups."""

from __future__ import annotations

import hashlib
import weakref
from contextlib import AbstractContextManager
from types import TracebackType

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..core.axes import check_known
from ..core.call import Call, given
from ..core.errors import MeshkitError, told
from ..core.plan import GroupPlan, not_built
from ..core.position import Position
from ..core.verification import Verification
from ..launch.inside import timeout_of
from ..launch.meet import Party
from ..launch.record import Joined
from ..launch.times import Time, duration
from .agree import agree_close, agree_value, placed
from .barrier import barrier
from .create import NONE, Groups, abort, destroy, ends_together
from .device_mesh import device_mesh
from .guard import guarded
from .rollcall import Site
from .verify import verified


class Mesh(Position):
    """The mesh of one process: who it is, who its peers are, and the groups they share.

    Made by :func:`meshkit.build_mesh`. Every question about the grid is answered by ``layout``;
    only ``barrier``, ``agree`` and ``verify`` communicate. ``with`` closes it at the end.

    Args:
        call: the call that built it, for errors to quote.
        plan: the layout and the groups asked for.
        joined: what is known of the default group.
        groups: this rank's groups.
        number: that of the meeting in which the ranks agreed on it.
    """

    def __init__(
        self, call: Call, plan: GroupPlan, joined: Joined, groups: Groups, number: int
    ) -> None:
        super().__init__(plan.layout, joined.world.rank)
        self._number = number
        self._call = call
        self._plan = plan
        self._joined = joined
        self._groups = groups
        self._closed = False
        self._left: set[int] = set()  # this rank, once it has left a guard with an error
        self._world = weakref.ref(dist.group.WORLD) if dist.group.WORLD is not None else None

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
        call = Call("mesh.group", axes)
        check_known(call, axes, self.layout.axes)
        if self._closed or self._world is None or self._world() is not dist.group.WORLD:
            why = "the mesh is closed" if self._closed else "the job it was built in has been left"
            raise MeshkitError(told(f"{call}: {why}.", fix=f"{self._call} again."))
        if not self._plan.has(axes):
            raise not_built(call, self._call, self._plan, axes)
        if self.rank not in self.layout:
            self.layout.coordinate(self.rank)  # raises, with the ranks that are inside
        return self._groups.by_key[self._plan.key(axes)]

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
        """
        device = self._joined.world.device
        kind = device.type if device is not None else "cpu"
        return device_mesh(self.layout, self.rank, self.group, kind, pattern)

    def barrier(self, *axes: str, timeout: Time | None = None) -> None:
        """Wait until every rank of this rank's group over the axes is here.

        Collective over that group. Without axes, over the whole mesh. Two store operations a rank
        beside the group's own barrier, so that missing ranks can be named on any backend.

        Args:
            *axes: as in :meth:`group`.
            timeout: how long to wait, in seconds or as a timedelta; None is the group's timeout.

        Raises:
            RankTimeoutError: where others did not come in time, with their coordinates; the group
                is then broken.
            CollectiveError: where it broke before that, as a rank died.
        """
        call = Call("mesh.barrier", axes, given(timeout=timeout))
        group = self.group(*axes)
        limit = duration(call, "timeout", timeout) or timeout_of(group)
        barrier(call, self._party(axes), group, limit, self._device_ids(), placed(self.layout))

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
        call = Call("mesh.guard", kwargs=given(timeout=timeout))
        self.group()  # raises on a rank outside, and once closed
        limit = duration(call, "timeout", timeout)
        return guarded(self._site(call), limit)

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
        call = Call("mesh.verify", kwargs=given(timeout=timeout))
        self.group()  # raises on a rank outside, and once closed
        limit = duration(call, "timeout", timeout)
        with guarded(self._site(call), limit):
            return verified(call, self.layout, self.rank, self._groups.by_key, self._device())

    def agree(self, what: str, value: object) -> None:
        """Compare a value over all ranks of the mesh: a learning rate, a path, a version.

        Collective over the mesh, on the host: six store operations a rank, no process group.

        Args:
            what: what the value is, for the error.
            value: compared by its ``repr``.

        Raises:
            DisagreementError: the same on every rank, with who has which value.
            RankTimeoutError: where ranks did not come within the mesh's ``arrival_timeout``.
            CoordinateError: on a rank outside the mesh.
        """
        self.group()  # raises on a rank outside, and once closed
        agree_value(self.layout, self._joined, self._number, what, value)

    def close(self) -> None:
        """Destroy the groups this mesh made, and nothing else. Harmless to repeat.

        Call it on every rank. The default group stays. No descriptor and no thread is left, once
        the caller too has let go of the groups it took. Local on gloo. On nccl, which ends a group
        on all ranks together, they meet first, unless an error ends the ``with``.

        Raises:
            RankTimeoutError: on nccl, where ranks did not come; the groups are then aborted.
            DisagreementError: on nccl, where a rank makes another call.
        """
        self._close(alone=False)

    def _close(self, alone: bool) -> None:
        # torch frees descriptors and threads with the last reference
        made, self._groups, self._closed = self._groups.made, NONE, True
        if not ends_together(made):
            return destroy(made)
        try:
            if alone:
                abort(made)
            else:
                agree_close(self.layout, self._joined, self._number)
        except BaseException:
            abort(made)
            raise
        finally:
            destroy(made)

    def __enter__(self) -> Mesh:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(alone=error is not None)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.layout.sizes.items())
        return f"Mesh({sizes}; {self._place()}{'; closed' if self._closed else ''})"

    def __str__(self) -> str:
        return self.layout.draw(mark=self.rank)

    def _place(self) -> str:
        if self.rank not in self.layout:
            return f"rank {self.rank} is outside"
        return f"rank {self.rank}: " + " ".join(f"{a}={i}" for a, i in self.coordinate.items())

    def _party(self, axes: tuple[str, ...]) -> Party | None:
        """The ranks of a group at the store; None where torch tells no store."""
        if self._joined.store is None:
            return None
        ranks = sorted(int(rank) for rank in self.peers(*axes))
        who = hashlib.sha256(str(ranks).encode()).hexdigest()  # one name for equal groups
        keys = f"mesh/{self._number}/barrier/{who}/"
        return Party(self._joined.store, self._joined.world, ranks, keys)

    def _site(self, call: Call) -> Site:
        """What a guard needs to know of this mesh."""
        groups, number = self._groups.by_key, self._number
        return Site(call, self.layout, self._joined, groups, number, self._left)

    def _device(self) -> torch.device:
        """Where tensors of a collective must lie."""
        return self._joined.world.device or torch.device("cpu")

    def _device_ids(self) -> list[int] | None:
        """The device a collective without tensors must use, where the backend needs one."""
        device = self._joined.world.device
        return [device.index] if device is not None and device.index is not None else None
