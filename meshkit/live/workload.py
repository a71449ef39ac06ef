"""What else is this rank's: its tokens of a sequence, its random numbers."""

from __future__ import annotations

from ..core.call import Call
from ..core.sequence import Order
from .reader import Reader
from .sequence import SP, SequenceShard, sequence_shard


class Workload(Reader):
    """A rank with its groups and samples, and its exact share of all else."""

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
