"""What else is this rank's: its tokens of a sequence, its random numbers."""

from __future__ import annotations

from functools import cached_property, partial

from ..core.call import public
from ..core.data.random_streams import compute_seed, select_coordinate
from ..core.data.sequence import Order, plan_sequence
from ..core.grid.axis_names import resolve_axes
from .data.rng import RandomStreams, base_seed
from .data.sequence import DEFAULT_AXES, SequenceShard
from .reader import Reader


class Workload(Reader):
    """A rank with its groups and samples, and its exact share of all else."""

    @public("mesh.sequence")
    def sequence(
        self,
        length: int,
        *,
        axes: str | tuple[str, ...] = DEFAULT_AXES,
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
        self._check_here()
        names = resolve_axes("axes", axes, self.layout.axes)
        plan = plan_sequence(self.layout, names, length, order=order, pad=pad)
        part = self.group_rank(*names) if names else 0
        return SequenceShard(plan, part, self._device(), lambda: self.group(*names))

    @public("mesh.seed")
    def seed(self, base: int | None = None, *, vary: str | tuple[str, ...] = ()) -> int:
        """The seed of this rank: distinct along the axes of ``vary``, equal along all others.

        Local, and no generator is touched. It is :func:`meshkit.stream_seed` of the base and this
        rank's coordinate along ``vary``, so that it stays as it is when any axis grows.

        Args:
            base: any int; None is the seed given to ``meshkit.init``, the one it drew for
                ``"shared"`` included, or 0 where none was given.
            vary: the axes along which seeds differ, ``"dp tp"`` or ``("dp", "tp")``; empty means
                that all ranks have the same.

        Returns:
            An int from 0 to 2**63 - 1, which every generator of torch takes. On fewer than 2**13
            ranks its low 32 bits are as distinct: ``np.random.seed(mesh.seed() % 2**32)``.

        Raises:
            SpecError: for a base that is no int, or ``vary`` that names no axes.
            UnknownAxisError: for an axis in ``vary`` that the mesh does not have.
            CoordinateError: on a rank outside the mesh, where ``vary`` names an axis.

        Example:
            ``torch.manual_seed(mesh.seed(vary=("dp", "tp")))``
        """
        coordinate = select_coordinate(self.layout, self.rank, vary)
        number = base_seed(self._joined.seed) if base is None else base
        return compute_seed(number, "", coordinate)

    @cached_property
    def rng(self) -> RandomStreams:
        """Random streams of this rank by name, as :class:`~meshkit.live.data.rng.RandomStreams`.

        Example:
            ``with mesh.rng("dropout", vary=("dp", "tp")): y = layer(x)``
        """
        base = partial(base_seed, self._joined.seed)  # no method of ours: a cycle would outlive us
        return RandomStreams(self.layout, self.rank, self._device().type, base)
