"""A rank on the grid: every question that one rank can answer by itself."""

from __future__ import annotations

from .axes import check_known, listed
from .batch import BatchPlan, batch_plan
from .call import Call, given
from .errors import SpecError, told
from .layout import Layout
from .seats import Ints


class Position:
    """A layout and a rank. Local and pure; a :class:`meshkit.Mesh` is one with live groups.

    Args:
        layout: the grid.
        rank: a global rank; it may be outside.
    """

    def __init__(self, layout: Layout, rank: int) -> None:
        self._layout = layout
        self._rank = rank

    @property
    def layout(self) -> Layout:
        """The grid of ranks."""
        return self._layout

    @property
    def rank(self) -> int:
        """This process' global rank."""
        return self._rank

    @property
    def coordinate(self) -> dict[str, int]:
        """Where this rank sits: axis name to index. Local, O(axes).

        Raises:
            CoordinateError: on a rank outside the mesh (``mesh.inside`` tells).
        """
        return self.layout.coordinate(self.rank)

    @property
    def inside(self) -> bool:
        """Whether this rank is one of the mesh; others have no coordinate and no group. Local."""
        return self.rank in self.layout

    def size(self, *axes: str) -> int:
        """How many ranks the group over the axes has; without axes, the whole mesh. Local.

        Raises:
            UnknownAxisError: for an axis the mesh does not have.
        """
        return self.layout.size(*axes)

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

    def ring(self, axis: str) -> Ints:
        """The global ranks around an axis, this one first: int64 (size of the axis,). Local.

        Raises as :meth:`peers`. See :meth:`meshkit.Layout.ring`.
        """
        return self.layout.ring(self.rank, axis)

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
