"""What is this rank's to do: its samples, its tokens, its random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from ..core.axes import check_known, listed
from ..core.batch import batch_fields
from ..core.call import Call, given
from ..core.errors import SpecError, told
from ..core.sequence import Order
from ..core.words import count
from .grouped import Grouped
from .loop import RankPlan
from .sequence import SP, SequenceShard, sequence_shard


class Workload(Grouped):
    """A rank with its groups, and its exact share of the data."""

    def batch(
        self,
        *,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        accumulation_steps: int | None = None,
        data: str | tuple[str, ...] = ("dp",),
        round: str | None = None,
        uneven: bool = False,
    ) -> RankPlan:
        """How the global batch is cut for this mesh: any two of the three give the third. Local.

        Args:
            global_batch: samples in one optimizer step, over all ranks.
            micro_batch: samples in one forward and backward of one rank.
            accumulation_steps: micro batches a rank runs before one optimizer step.
            data: the axes that divide the samples, ``"dp ep"`` or ``("dp", "ep")``; the ranks of
                all others share them. Empty means that all ranks read the same.
            round: ``"down"`` or ``"up"``, see :meth:`meshkit.BatchPlan.solve`.
            uneven: let some ranks run one micro batch more than others; see there.

        Returns:
            The plan, which knows this rank's share: ``plan.samples(step)``,
            ``plan.micro_batches(step)`` and ``plan.sync_on_last(model, micro)``.

        Raises:
            BatchError: where they do not divide, with the nearest batches that do.
            UnknownAxisError: for an axis in ``data`` that the mesh does not have.
        """
        asked = given(
            global_batch=global_batch,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
        )
        said = asked if data == ("dp",) else {**asked, "data": data}
        axes = self._data_axes(Call("mesh.batch", kwargs=said), data)
        sizes = {"dp": self.size(*axes) if axes else 1, **asked}
        fields = batch_fields("mesh.batch", said, sizes, round, uneven)
        return RankPlan(**fields, data_index=self._index(axes))

    def token_weights(self, counts: Sequence[int] | torch.Tensor, *axes: str) -> torch.Tensor:
        """By what to scale the mean loss of each micro batch, where samples differ in length.

        Collective over the group of the axes: one all-reduce of one number. Scaled so, the gradient
        averaged over that group is exactly that of the mean over all tokens of the step: the weight
        is ``size(*axes) * tokens / all tokens``.

        Args:
            counts: how many tokens count in each micro batch of the step on this rank, without
                padding and what is masked; 0 for a filler. (A mean over none is NaN, and stays so
                when it is scaled by 0: divide by one at least.)
            *axes: those over which gradients are averaged and tokens are different; without any,
                ``dp``, and ``cp`` and ``sp`` where the mesh has them.

        Returns:
            float64 (micro batches,), on the cpu. It replaces ``micro.weight``.

        Raises:
            SpecError: for counts that are not whole numbers of 0 or more, or where no rank has a
                token; for a group that was not asked for.
            UnknownAxisError: for an axis the mesh does not have.
        """
        call = Call("mesh.token_weights", (counts, *axes))
        over = axes or tuple(axis for axis in ("dp", "cp", "sp") if axis in self.layout.axes)
        group, own = self.group(*over), torch.as_tensor(counts).detach().cpu()
        whole = own.ndim == 1 and not own.is_floating_point() and bool((own >= 0).all())
        # a rank that must refuse tells the others, which wait for it
        sums = torch.tensor([int(own.sum()) if whole else 0, not whole], device=self._device())
        dist.all_reduce(sums, group=group)
        total, refused = sums.tolist()
        if refused or not total:
            raise _no_tokens(call, " ".join(over), whole, refused)
        weights: torch.Tensor = own.double() * self.size(*over) / total
        return weights

    def sequence(
        self,
        length: int,
        *,
        axes: str | tuple[str, ...] = SP,
        order: Order = "contiguous",
        pad: bool = False,
    ) -> SequenceShard:
        """Which tokens of a sequence this rank holds, the same number on every rank. Local.

        The part is the place in ``mesh.group(*axes)``: the index along the axes as listed, the last
        fastest. Where the axes have size 1 every rank holds all, and all is the identity.

        Args:
            length: tokens in the sequence.
            axes: the axes that divide it, ``"cp sp"`` or ``("cp", "sp")``. Empty means that all
                ranks hold all of it.
            order: ``"contiguous"``, a run of tokens a rank; or ``"zigzag"``, an early and a late
                chunk a rank, equal work for all in causal ring attention. See
                :class:`meshkit.SequencePlan`.
            pad: whether a length that does not divide is filled up with padding at its end. False
                refuses it.

        Raises:
            SpecError: where the length is no multiple of the ranks, of twice as many for zigzag,
                and ``pad`` is False, with the nearest lengths that are; for values that cannot be.
            UnknownAxisError: for an axis the mesh does not have.
            CoordinateError: on a rank outside the mesh.
            MeshkitError: after ``close``, or after ``shutdown``.

        Example:
            ``mesh.sequence(4096, order="zigzag").take(tokens)``
        """
        self._check_here(Call("mesh.sequence", (length,)))
        here = self.layout, self.rank, self.group, self._device()
        return sequence_shard(*here, length, axes, order, pad)

    def _data_axes(self, call: Call, data: object) -> tuple[str, ...]:
        """The axes that divide the samples, from an argument of that meaning."""
        if not isinstance(data, str | tuple | list):
            fix = 'data=("dp",), or the axes that divide the samples.'
            raise SpecError(told(f"{call}: data is {data!r}.", fix=fix))
        axes = listed(data)
        check_known(call, axes, self.layout.axes)
        return axes

    def _index(self, axes: tuple[str, ...]) -> int | None:
        """This rank's place along some axes, the last fastest; None outside the mesh."""
        if not self.inside:
            return None
        here = [self.coordinate[axis] for axis in axes]
        sizes = [self.size(axis) for axis in axes]
        return int(np.ravel_multi_index(here, sizes)) if axes else 0


def _no_tokens(call: Call, over: str, whole: bool, refused: int) -> SpecError:
    """Why there are no weights, here or on another rank."""
    why = f"{call}: counts are whole numbers of 0 or more, one a micro batch."
    fix = "[int(mask.sum()) for mask in masks]."
    if whole and refused:
        why = f"{call}: {count(refused, 'rank')} over {over} refused its own counts."
        fix = "see the others' logs."
    elif whole:
        why = f"{call}: no rank over {over} has a token."
        fix = "leave this step out on all ranks."
    return SpecError(told(why, fix=fix))
