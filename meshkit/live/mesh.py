"""Mesh: a layout, this process' rank, and its live process groups."""

from __future__ import annotations

import hashlib
import weakref
from types import TracebackType

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..core.axes import check_known, listed
from ..core.batch import BatchPlan, batch_plan
from ..core.call import Call, given
from ..core.errors import MeshkitError, SpecError, told
from ..core.layout import Layout
from ..core.plan import GroupPlan
from ..core.seats import Ints
from ..launch.group_times import timeout_of
from ..launch.meet import Party
from ..launch.record import Joined
from ..launch.times import Time, duration
from .agree import agree_value, placed
from .barrier import barrier
from .create import NONE, Groups, destroy
from .device_mesh import device_mesh


class Mesh:
    """The mesh of one process: who it is, who its peers are, and the groups they share.

    Made by :func:`meshkit.build_mesh`. Every question about the grid is answered by ``layout``;
    only ``barrier`` communicates. ``with`` closes it at the end.

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
        self._number = number
        self._call = call
        self._plan = plan
        self._joined = joined
        self._groups = groups
        self._closed = False
        self._world = weakref.ref(dist.group.WORLD) if dist.group.WORLD is not None else None

    @property
    def layout(self) -> Layout:
        """The grid of ranks, pure."""
        return self._plan.layout

    @property
    def rank(self) -> int:
        """This process' global rank."""
        return self._joined.world.rank

    @property
    def coordinate(self) -> dict[str, int]:
        """Where this rank sits: axis name to index. Local, O(axes).

        Raises:
            CoordinateError: on a rank outside the mesh (``mesh.rank in mesh.layout`` tells).
        """
        return self.layout.coordinate(self.rank)

    def size(self, *axes: str) -> int:
        """How many ranks the group over the axes has; without axes, the whole mesh. Local.

        Raises:
            UnknownAxisError: for an axis the mesh does not have.
        """
        return self.layout.size(*axes)

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
            raise self._not_built(call, axes)
        if self.rank not in self.layout:
            self.layout.coordinate(self.rank)  # raises, with the ranks that are inside
        return self._groups.by_key[self._plan.key(axes)]

    def peers(self, *axes: str) -> Ints:
        """The global ranks of this rank's group over the axes, in the order of the group. Local.

        Returns:
            int64 (group_size,), this rank among them.

        Raises:
            UnknownAxisError: for an axis the mesh does not have.
            CoordinateError: on a rank outside the mesh.
        """
        return self.layout.peers(self.rank, *axes)

    ranks = peers

    def neighbor(self, axis: str, shift: int = 1, *, wrap: bool = True) -> int | None:
        """The global rank ``shift`` steps along an axis; None beyond its end where not ``wrap``.

        Local, O(axes). See :meth:`meshkit.Layout.neighbor`.
        """
        return self.layout.neighbor(self.rank, axis, shift, wrap=wrap)

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

    def batch(
        self,
        *,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        accumulation_steps: int | None = None,
        data: str | tuple[str, ...] = ("dp",),
    ) -> BatchPlan:
        """How the global batch is cut for this mesh: any two of the three give the third. Local.

        Args:
            global_batch: samples in one optimizer step, over all ranks.
            micro_batch: samples in one forward and backward of one rank.
            accumulation_steps: micro batches a rank runs before one optimizer step.
            data: the axes that divide the samples, ``"dp ep"`` or ``("dp", "ep")``; the ranks of
                all others share them. Empty means that all ranks read the same.

        Raises:
            BatchError: where they do not divide, with the nearest batches that do.
            UnknownAxisError: for an axis in ``data`` that the mesh does not have.
        """
        asked = given(
            global_batch=global_batch,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
        )
        more = {} if data == ("dp",) else {"data": data}
        call = Call("mesh.batch", kwargs={**asked, **more})
        if not isinstance(data, str | tuple | list):
            fix = 'data=("dp",), or the axes that divide the samples.'
            raise SpecError(told(f"{call}: data is {data!r}.", fix=fix))
        axes = listed(data)
        check_known(call, axes, self.layout.axes)
        return batch_plan(call, self.size(*axes) if axes else 1, asked)

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
        """
        call = Call("mesh.barrier", axes, given(timeout=timeout))
        group = self.group(*axes)
        limit = duration(call, "timeout", timeout) or timeout_of(group)
        barrier(call, self._party(axes), group, limit, self._device_ids(), placed(self.layout))

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
        self.layout.coordinate(self.rank)  # raises on a rank outside
        agree_value(self.layout, self._joined, self._number, what, value)

    def close(self) -> None:
        """Destroy the groups this mesh made, and nothing else. Harmless to repeat.

        Call it on every rank. The default group stays. No descriptor and no thread is left, once
        the caller too has let go of the groups it took.
        """
        if not self._closed:
            destroy(self._groups.made)
        self._groups = NONE  # torch frees descriptors and threads with the last reference
        self._closed = True

    def __enter__(self) -> Mesh:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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

    def _device_ids(self) -> list[int] | None:
        """The device a collective without tensors must use, where the backend needs one."""
        device = self._joined.world.device
        return [device.index] if device is not None and device.index is not None else None

    def _not_built(self, call: Call, axes: tuple[str, ...]) -> SpecError:
        built = ", ".join("(" + " ".join(a) + ")" for a in self._plan.asked if a)
        more = [*(" ".join(a) for a in self._plan.extra), " ".join(axes)]
        text = told(
            f"{call}: no group over {' '.join(axes)} was built.",
            f"Built are {built}; a getter never creates one.",
            fix=f"{self._call.but(groups=more)}.",
        )
        return SpecError(text, sizes=self.layout.sizes)
